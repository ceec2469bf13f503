"""Build a WebDataset pipeline from the stages of wdsbench: members are read after the shuffle.

python examples/webdataset_pipeline.py shards/
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import webdataset as wds

from wdsbench.shards.read.open import open_index
from wdsbench.stream import EpochShuffle, PieceList, SampleMembers, SampleRows, load_member


def last_layer(sample: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Return the mean of the last layer's states and the label."""
    hidden = load_member(sample["hidden.npy"])  # float16 [L, T, D]; read here
    return hidden[-1].mean(axis=0, dtype=np.float32), sample["label"]


def main(shards: str) -> None:
    """Run two epochs."""
    index = open_index(shards)
    pieces = PieceList(index, "train", seed=0)
    shuffle = EpochShuffle(1000, seed=0)  # holds row numbers, not arrays
    pipeline = wds.DataPipeline(
        pieces,
        wds.split_by_node,
        wds.split_by_worker,
        SampleRows(index),
        shuffle,
        SampleMembers(index),
        wds.map(last_layer),
        wds.batched(16),
    )
    for epoch in range(2):
        pieces.epoch = shuffle.epoch = epoch
        batches = list(pipeline)
        states, labels = batches[0]
        print(f"epoch {epoch}: {len(batches)} batches, {states.shape}, first labels {labels[:4]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
