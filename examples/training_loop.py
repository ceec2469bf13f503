"""Train a detector of your own in a loop of your own, and resume it in the middle of an epoch.

python examples/training_loop.py shards/
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from wdsbench import TraceLoader

EPOCHS = 2


def main(shards: str) -> None:
    """Train a linear probe on the last answer token of every layer."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else None
    loader = TraceLoader(shards, "train", tokens="last_answer", batch_size=16, device=device)
    layers, _, features = loader.fields["hidden"].shape
    assert layers is not None
    assert features is not None
    model = nn.Sequential(nn.Flatten(), nn.LayerNorm(layers * features))
    model.append(nn.Linear(layers * features, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.BCEWithLogitsLoss()

    for epoch in range(EPOCHS):
        for step, batch in enumerate(loader):  # len(loader) steps
            known = ~batch.label.isnan()
            loss = loss_of(model(batch.hidden[known]).squeeze(1), batch.label[known])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (epoch, step) == (0, 2):
                state = loader.state_dict()  # small JSON: save it with the weights
        print(f"epoch {epoch}: loss {loss.item():.3f}. {loader.stats.verdict}")

    loader.load_state_dict(state)  # continues after step 2 of epoch 0, without reading to there
    print(f"resumed: {sum(1 for _ in loader)} of {len(loader)} steps of epoch 0 are left")


if __name__ == "__main__":
    main(*sys.argv[1:])
