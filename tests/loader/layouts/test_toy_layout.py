"""A layout is added by one class and one row of the table."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import Packed, make_dataset
from numpy.typing import NDArray
from trials import FULL_ONLY

from wdsbench import Batch, TraceLoader
from wdsbench.loader.layouts import LAYOUTS, BatchTensors, Layout, Placement


class LayersFirst(Layout):
    """Samples padded to the longest of the batch, ``[L, B, Tmax, D]``."""

    name = "layers-first"

    def shape(self, rows: NDArray[np.int64]) -> Placement:
        lengths, features = self.plan.ranges.count[rows], self.plan.index.num_features
        padded = int(lengths.max(initial=0))
        return Placement(
            (self.plan.layers.size, rows.size, padded, features),
            targets=np.arange(rows.size) * (padded * features),
            strides=np.full(rows.size, rows.size * padded * features),
            lengths=lengths,
            padded=padded,
        )

    def bytes(self, rows: NDArray[np.int64], batch_size: int) -> tuple[int, int]:
        longest = int(self.plan.ranges.count[rows].max(initial=0))
        return min(batch_size, rows.size) * longest * self.plan.token_bytes, 0

    def assemble(self, tensors: BatchTensors, batch: Batch) -> None:
        batch.hidden = tensors.values
        batch.lengths = torch.from_numpy(tensors.placement.lengths)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=30)


@pytest.mark.parametrize(
    ("workers", "layers"),
    [
        (0, None),
        (2, [2, 0]),
        *(pytest.param(*pair, marks=FULL_ONLY) for pair in ((0, [2, 0]), (2, None))),
    ],
)
def test_a_toy_layout(
    packed: Packed, monkeypatch: pytest.MonkeyPatch, workers: int, layers: list[int] | None
) -> None:
    monkeypatch.setitem(LAYOUTS, "layers-first", LayersFirst)

    def load(layout: str) -> TraceLoader:
        return TraceLoader(
            packed.folder,
            split=None,
            tokens="all",
            layout=layout,
            layers=layers,
            batch_size=7,
            num_workers=workers,
        )

    loader, padded = load("layers-first"), load("pad")
    for _ in range(2):
        for ours, theirs in zip(loader, padded, strict=True):
            assert ours.hidden is not None
            assert theirs.hidden is not None
            assert ours.keys == theirs.keys
            assert torch.equal(ours.hidden.transpose(0, 1), theirs.hidden)
    assert loader.stats.samples == 30


def test_an_unknown_layout_is_refused(packed: Packed) -> None:
    with pytest.raises(ValueError, match="'rows' is not one of stack, pad, jagged, graph, union-"):
        TraceLoader(packed.folder, layout="rows")
