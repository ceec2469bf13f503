"""A question in two splits is refused, by the packer and in a data set made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from builders import make_dataset, make_raw, write_pickle, write_scores

from wdsbench.errors import ShardError, TraceError
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.check.index_check import check_split_hygiene
from wdsbench.shards.format.index import Provenance
from wdsbench.shards.format.names import splits_of_files
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_index
from wdsbench.shards.write.writer import DatasetWriter


def by_hand(folder: Path, *samples: tuple[str, str, int]) -> DatasetIndex:
    """Write samples of (split, question, trace) without any check, one in each shard."""
    writer = DatasetWriter(folder, shard_mb=1e-6)
    for split, question, trace in samples:
        row = SampleRow(f"{split}-{trace}", question, trace, 1, 1, -1, 1.0, 0.0)
        writer.add(split, row, {"meta.json": [json.dumps({"question_id": question}).encode()]})
    writer.finish(fields={}, layers=[], provenance=Provenance())
    return DatasetIndex.open(folder)


def test_traces_of_a_question_in_one_split_pass(tmp_path: Path) -> None:
    check_split_hygiene(
        by_hand(tmp_path / "a", ("train", "a", 0), ("train", "a", 1), ("test", "b", 0))
    )
    check_split_hygiene(by_hand(tmp_path / "b"))
    check_split_hygiene(DatasetIndex.open(make_dataset(tmp_path / "c", traces=12).folder))


@pytest.mark.parametrize(
    ("first", "second"), [("train", "val"), ("train", "test"), ("val", "test")]
)
def test_a_question_in_two_splits_is_named_with_both(
    tmp_path: Path, first: str, second: str
) -> None:
    question = "n\u00e9\ud800"  # ids are compared as text, whatever is in them
    samples = [("train", "good", 0), (first, question, 0), (second, question, 1)]
    with pytest.raises(ShardError) as caught:
        check_split_hygiene(by_hand(tmp_path, *samples))
    words = f"question {question!r} is in split {first} and in {second};"
    assert words in str(caught.value)


def test_their_number_is_reported(tmp_path: Path) -> None:
    samples = [(split, f"q{i}", i) for i in range(3) for split in ("train", "test")]
    with pytest.raises(ShardError, match=r"'q0' is in split .* and in test \(3 such questions\)"):
        check_split_hygiene(by_hand(tmp_path, *samples))


def test_tars_of_another_writer(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=8)
    source = next(packed.folder.glob("train-*.tar"))
    for split in ("train", "val"):
        (tmp_path / f"{split}.tar").write_bytes(source.read_bytes())
    index = open_index([tmp_path / "train.tar", tmp_path / "val.tar"])
    with pytest.raises(ShardError, match="is in split train and in val"):
        check_split_hygiene(index)


@pytest.mark.parametrize(("split", "words"), [(2, "is of split test"), (7, "of split number 7")])
def test_a_row_of_another_split_than_its_shard(tmp_path: Path, split: int, words: str) -> None:
    index = by_hand(tmp_path, ("train", "a", 0), ("train", "b", 1), ("val", "c", 2))
    index.columns["split"] = np.array([0, split, 1], np.uint8)
    with pytest.raises(ShardError, match=rf"train-000001\.tar: question 'b' .*{words}"):
        check_split_hygiene(index)


def test_the_packer_refuses_it_first(tmp_path: Path) -> None:
    names = [f"b{i}.pkl" for i in range(10)]
    splits = splits_of_files(names)
    other = next(i for i, split in enumerate(splits) if split != splits[0])
    for i, name in enumerate(names):
        question = "q0" if i == other else f"q{i}"
        write_pickle(tmp_path / "traces" / name, [make_raw(question, seed=i)])
    scores = write_scores(tmp_path / "s.csv", {f"q{i}": 0.0 for i in range(10)})
    traces = [str(tmp_path / "traces" / "*")]
    words = (
        f"question q0: is in split {splits[other]}, an earlier trace of its question in {splits[0]}"
    )
    with pytest.raises(TraceError, match=words):
        pack(traces, tmp_path / "o", scores=scores, options=PackOptions(split_by="file"))
    assert not (tmp_path / "o").exists()
    assert pack(traces, tmp_path / "o", scores=scores).samples == 10
