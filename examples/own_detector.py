"""Score traces with a detector of your own and measure it as `wdsbench train` measures its own.

python examples/own_detector.py shards/
"""

from __future__ import annotations

import sys

import numpy as np

from wdsbench import Batch, TraceLoader
from wdsbench.train.bootstrap import auroc_interval
from wdsbench.train.metrics import auroc

ENTROPY = 3  # the fourth number of a sketch; see docs/format.md


def attention_entropy(batch: Batch) -> list[float]:
    """Return the mean entropy of attention over layers, heads and answer tokens."""
    assert batch.sketch is not None  # one [L, H, T, 4] per sample
    prompts = batch.prompt_length.tolist()
    return [
        float(sketch[:, :, max(prompt, 0) :, ENTROPY].mean())
        for sketch, prompt in zip(batch.sketch, prompts, strict=True)
    ]


def scores_of(shards: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and scores of the labelled samples of a split."""
    loader = TraceLoader(shards, split, fields=("sketch",), shuffle=0)
    labels, scores = [], []
    for batch in loader:
        labels += batch.label.tolist()
        scores += attention_entropy(batch)
    known = ~np.isnan(labels)
    return np.array(labels)[known], np.array(scores)[known]


def main(shards: str) -> None:
    """Choose the sign on validation, measure on test."""
    sign = 1 if auroc(*scores_of(shards, "val")) >= 0.5 else -1
    labels, scores = scores_of(shards, "test")
    found = auroc_interval(labels, sign * scores, seed=0)
    print(f"attention_entropy AUROC {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]")


if __name__ == "__main__":
    main(*sys.argv[1:])
