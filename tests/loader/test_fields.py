"""A member kind that is decoded in Python is a field of loaders by its row in the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_dataset
from shards.damage import Sample, load, npy, rewritten

from wdsbench import DecodeError, TraceDataset, TraceLoader
from wdsbench.shards.format.index import FieldEntry
from wdsbench.shards.format.kinds import KINDS, MemberKind, MemberSpec

TOY = MemberKind(
    "toy",
    (MemberSpec("toy.npy", ("<f2",), ("L", "T")),),
    main="toy.npy",
    pack_option="--toy",
    remedy="repack with --toy",
    loader_field=True,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set whose samples hold the number of their layer and their number of tokens."""
    packed = make_dataset(tmp_path, traces=12)
    monkeypatch.setitem(KINDS, TOY.name, TOY)

    def add_member(samples: list[Sample]) -> None:
        for sample in samples:
            layers = load(sample.members["hidden.npy"]).shape[0]
            toy = np.add.outer(np.arange(layers) * 100, np.full(sample.row.tokens, 1))
            sample.members["toy.npy"] = npy(toy.astype(np.float16))

    def add_field(fields: dict[str, FieldEntry]) -> None:
        fields["toy"] = FieldEntry(dtype="<f2", shape=TOY.index_shape(3, 8, 2), samples=12)

    return rewritten(packed.folder, tmp_path / "toy", add_member, add_field)


def expected(tokens: int) -> torch.Tensor:
    return torch.tensor([[201.0] * tokens, [1.0] * tokens])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_toy_field(folder: Path, workers: int) -> None:
    loader = TraceLoader(
        folder, split=None, fields=("toy",), layers=[2, 0], batch_size=7, num_workers=workers
    )
    for batch in loader:
        assert batch.hidden is None
        for toy, tokens in zip(batch.extra["toy"], batch.token_count.tolist(), strict=True):
            assert toy.dtype == torch.float32
            assert torch.equal(toy, expected(tokens))
    assert loader.stats.samples == 12


def test_a_toy_field_of_single_samples(folder: Path) -> None:
    samples = list(TraceDataset(folder, split=None, fields=("hidden", "toy"), layers=[2, 0]))
    assert len(samples) == 12
    for sample in samples:
        assert torch.equal(sample["toy"], expected(int(sample["token_count"])))


def test_a_field_that_samples_do_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = make_dataset(tmp_path, traces=6)
    monkeypatch.setitem(KINDS, TOY.name, TOY)
    with pytest.raises(DecodeError, match="6 samples hold no toy; repack with --toy"):
        TraceLoader(packed.folder, split=None, fields=("toy",))
