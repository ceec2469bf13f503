"""Train a small graph network of PyTorch Geometric on attention graphs.

python examples/graphs.py shards/
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch_geometric.nn import GINEConv, global_mean_pool

from wdsbench import TraceLoader


class Net(nn.Module):
    """One message-passing layer over each layer's graph, then a mean over nodes and layers."""

    def __init__(self, features: int, layers: int, width: int = 32) -> None:
        super().__init__()
        self.layers = layers
        self.inputs = nn.Linear(features, width)
        self.conv = GINEConv(nn.Linear(width, width), edge_dim=1)
        self.output = nn.Linear(width, 1)

    def forward(self, graph) -> torch.Tensor:  # type: ignore[no-untyped-def]
        """Return a logit for each sample; graph ``b * layers + l`` is layer l of sample b."""
        x = self.conv(self.inputs(graph.x), graph.edge_index, graph.edge_attr).relu()
        pooled = global_mean_pool(x, graph.batch)  # [B * layers, width]
        return self.output(pooled.unflatten(0, (-1, self.layers)).mean(dim=1)).squeeze(1)


def main(shards: str) -> None:
    """Train for one epoch."""
    torch.manual_seed(0)
    loader = TraceLoader(shards, "train", layout="graph", layers=[-2, -1], batch_size=16)
    features = loader.fields["hidden"].shape[2]
    assert features is not None
    model = Net(features, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in loader:
        known = ~batch.label.isnan()
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(batch.graph)[known], batch.label[known]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{batch.graph.num_graphs} graphs in the last batch, loss {loss.item():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
