"""A member kind is one row: written, listed, checked, streamed and decoded without other code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_dataset
from shards.damage import Sample, load, npy, rewritten

from wdsbench import DecodeError, TraceLoader
from wdsbench.shards.check.verify import verify_dataset
from wdsbench.shards.format.index import FieldEntry
from wdsbench.shards.format.kinds import KINDS, MemberKind, MemberSpec, loader_kinds
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_index
from wdsbench.shards.read.sample import StoredSample
from wdsbench.stream import SampleMembers, load_member

#: The row: gate activations of every layer and token.
GATES = MemberKind(
    "gates",
    (MemberSpec("gates.npy", ("<f4",), ("L", "T")),),
    main="gates.npy",
    pack_option="--gates",
    remedy="repack with --gates",
    loader_field=True,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set whose samples hold gates, but for the first."""
    packed = make_dataset(tmp_path, traces=12)
    monkeypatch.setitem(KINDS, GATES.name, GATES)

    def add_gates(samples: list[Sample]) -> None:
        for sample in samples[1:]:
            layers = load(sample.members["hidden.npy"]).shape[0]
            gates = np.full((layers, sample.row.tokens), sample.row.trace + 0.5, np.float32)
            sample.members["gates.npy"] = npy(gates)

    def add_field(fields: dict[str, FieldEntry]) -> None:
        fields["gates"] = FieldEntry(dtype="<f4", shape=GATES.index_shape(3, 8, 2), samples=11)

    return rewritten(packed.folder, tmp_path / "toy", add_gates, add_field)


def test_it_is_in_table_and_index(folder: Path) -> None:
    index = DatasetIndex.open(folder)
    assert (index.member("gates.npy", "size") != 0).sum() == 11
    assert index.fields["gates"].shape == (3, None)
    assert verify_dataset(folder).sound


def test_it_is_decoded(folder: Path) -> None:
    index = DatasetIndex.open(folder)
    sample = StoredSample(index, 1)
    assert sample.array("gates").shape == (3, sample.sizes.tokens)
    with pytest.raises(DecodeError, match=r"no gates; repack with --gates"):
        StoredSample(index, 0).array("gates")


def test_it_is_streamed(folder: Path) -> None:
    sample = SampleMembers(DatasetIndex.open(folder)).sample(1)
    assert load_member(sample["gates.npy"]).dtype == np.float32


def test_tar_files_without_an_index_have_it(folder: Path) -> None:
    index = open_index(sorted(folder.glob("*.tar")))
    assert index.file.fields["gates"].samples == 11
    assert np.all(StoredSample(index, 1).array("gates") == 0.5)


def test_its_shape_is_checked(folder: Path, tmp_path: Path) -> None:
    def cut(samples: list[Sample]) -> None:
        samples[1].members["gates.npy"] = npy(load(samples[1].members["gates.npy"])[:, 1:])

    damaged = rewritten(folder, tmp_path / "damaged", cut)
    (problem,) = verify_dataset(damaged).problems
    index = DatasetIndex.open(damaged)
    assert (problem.kind, problem.member) == ("npy", index.member_name(1, "gates.npy"))
    with pytest.raises(DecodeError, match=r"expected \(3, \d+\) of <f4"):
        StoredSample(index, 1).array("gates")


def test_the_loader_reads_it_as_a_field(folder: Path) -> None:
    assert set(loader_kinds()) == {"sketch", "gates"}
    arguments: dict[str, Any] = {"fields": ("gates",), "layers": [0, 2], "batch_size": 4}
    index = DatasetIndex.open(folder)
    split = next(split for split in ("val", "test") if index.counts[split])
    read = 0
    for batch in TraceLoader(folder, split=split, shuffle=0, **arguments):
        for key, gates in zip(batch.keys, batch.extra["gates"], strict=True):
            row = index.keys(np.arange(len(index))).index(key)
            expected = StoredSample(index, row).array("gates")[[0, 2]]
            np.testing.assert_array_equal(np.asarray(gates), expected)
            read += 1
    assert read == index.counts[split]
    with pytest.raises(DecodeError, match="1 samples hold no gates; repack with --gates"):
        TraceLoader(folder, split="train", **arguments)
