"""Relabelling: by the rules of packing, and nothing but labels changes."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from builders import LAYERS, Packed, make_dataset, make_raw, write_pickle, write_scores
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.errors import ScoreError
from wdsbench.pack import PackOptions, pack
from wdsbench.pack.relabel import relabel
from wdsbench.shards.format.index import LabelsEntry
from wdsbench.shards.read.index import DatasetIndex


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("original"))


@pytest.fixture
def packed(original: Packed, tmp_path: Path) -> Packed:
    """Return a copy of the data set, with its raw and score files beside it."""
    shutil.copytree(original.folder.parent, tmp_path, dirs_exist_ok=True)
    return replace(original, folder=tmp_path / original.folder.name)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def by_question(index: DatasetIndex, column: str) -> dict[str, float]:
    values = index.columns[column].tolist()
    return {index.question_id(row): values[row] for row in range(len(index))}


def labels_of(loader: TraceLoader) -> dict[str, float]:
    return {
        question: label
        for batch in loader
        for question, label in zip(batch.question_ids, batch.label.tolist(), strict=True)
    }


def test_as_if_packed_with_the_new_scores(packed: Packed, tmp_path: Path) -> None:
    scores = {question: (i * 7 % 60) / 60 for i, question in enumerate(packed.raws)}
    new = write_scores(tmp_path / "new.csv", scores, "f1")
    options = PackOptions(score_column="f1", threshold=0.25, shard_mb=0.01)
    again = tmp_path / "again"
    pack([str(tmp_path / "traces_data" / "*")], again, scores=new, options=options)
    before = DatasetIndex.open(packed.folder)

    report = relabel(packed.folder, new, score_column="f1", threshold=0.25)

    ours, theirs = contents(packed.folder), contents(again)
    index, fresh = DatasetIndex.open(packed.folder), DatasetIndex.open(again)
    assert ours.pop("index.json") != theirs.pop("index.json")  # how the shards were packed
    assert ours == theirs
    assert index.file == fresh.file.model_copy(update={"provenance": before.file.provenance})
    assert index.file == report.index
    old, now = by_question(before, "label"), by_question(index, "label")
    assert now == {question: float(score < 0.25) for question, score in scores.items()}
    assert report.changed == sum(old[question] != now[question] for question in old) > 0
    assert (report.samples, report.unlabelled, report.unused) == (60, 0, 0)
    relabel(packed.folder, tmp_path / "scores.csv")
    assert DatasetIndex.open(packed.folder).file == before.file


def test_where_labels_come_from(packed: Packed, tmp_path: Path) -> None:
    def source(path: Path, column: str, threshold: float) -> LabelsEntry:
        return LabelsEntry(
            source="scores",
            file=path.name,
            xxh3=xxhash.xxh3_64_hexdigest(path.read_bytes()),
            column=column,
            threshold=threshold,
        )

    packed_with = source(tmp_path / "scores.csv", "bleurt_score", 0.5)
    assert DatasetIndex.open(packed.folder).labels == packed_with
    new = write_scores(tmp_path / "elsewhere" / "new.csv", packed.scores, "f1")
    relabel(packed.folder, new, threshold=0.75)
    assert DatasetIndex.open(packed.folder).labels == source(new, "f1", 0.75)


def test_labels_of_the_raw_files_and_then_of_scores(tmp_path: Path) -> None:
    import torch

    questions = [f"q{i}" for i in range(12)]
    labels = [i % 2 for i in range(12)]
    content = {"sequences": torch.randn(12, LAYERS, 8), "labels": labels, "question_ids": questions}
    torch.save(content, tmp_path / "set.pt")
    pack([str(tmp_path / "set.pt")], tmp_path / "shards")
    index = DatasetIndex.open(tmp_path / "shards")
    assert index.labels == LabelsEntry(source="traces")
    assert np.isnan(index.columns["score"]).all()
    scores = write_scores(tmp_path / "s.csv", {q: i / 12 for i, q in enumerate(questions)})
    report = relabel(tmp_path / "shards", scores)
    index = DatasetIndex.open(tmp_path / "shards")
    wanted = {question: float(i < 6) for i, question in enumerate(questions)}
    assert by_question(index, "label") == wanted
    assert report.changed == sum(
        wanted[q] != label for q, label in zip(questions, labels, strict=True)
    )


def test_every_trace_of_a_question_gets_its_score(tmp_path: Path) -> None:
    write_pickle(tmp_path / "t.pkl", [make_raw(f"q{i % 5}", seed=i) for i in range(15)])
    scores = write_scores(tmp_path / "s.csv", {f"q{i}": 1.0 for i in range(5)})
    pack([str(tmp_path / "t.pkl")], tmp_path / "shards", scores=scores)
    new = write_scores(tmp_path / "new.csv", {f"q{i}": float(i > 0) for i in range(5)})
    assert relabel(tmp_path / "shards", new).changed == 3
    index = DatasetIndex.open(tmp_path / "shards")
    hallucinated = np.flatnonzero(index.columns["label"] == 1)
    assert set(index.question_ids(hallucinated)) == {"q0"}
    assert hallucinated.size == 3


def write_rows(path: Path, *rows: tuple[str, object, object]) -> Path:
    lines = [",".join(map(str, row)) for row in [("question_id", "trace", "s"), *rows]]
    path.write_text("\n".join(lines) + "\n")
    return path


def pack_traces(folder: Path, *, stated: bool, traces: int = 3) -> Path:
    """Pack traces 0, 1, ... of q0 ... q4, numbered by the raw file or by packing."""
    raws = [make_raw(f"q{i % 5}", seed=i) for i in range(5 * traces)]
    if stated:
        raws = [{**raw, "trace_number": i // 5} for i, raw in enumerate(raws)]
    write_pickle(folder / "t.pkl", raws)
    scores = write_scores(folder / "s.csv", {f"q{i}": 1.0 for i in range(5)})
    pack([str(folder / "t.pkl")], folder / "shards", scores=scores)
    return folder / "shards"


def by_trace(folder: Path, column: str = "score") -> dict[tuple[str, int], float | None]:
    index = DatasetIndex.open(folder)
    values, numbers = index.columns[column].tolist(), index.columns["trace"].tolist()
    return {
        (index.question_id(row), numbers[row]): value if value == value else None
        for row, value in enumerate(values)
    }


@pytest.mark.parametrize("stated", [True, False])
def test_every_trace_gets_its_own_score(stated: bool, tmp_path: Path) -> None:
    folder = pack_traces(tmp_path, stated=stated)
    wanted = {(f"q{i}", n): (i + 5 * n) / 16 for i in range(5) for n in range(3)}
    lines = [(*key, score) for key, score in wanted.items()][::-1]
    new = write_rows(tmp_path / "new.csv", *lines, ("other", 0, 1), ("other", "", ""))
    report = relabel(folder, new)
    assert by_trace(folder) == wanted
    assert by_trace(folder, "label") == {key: float(s < 0.5) for key, s in wanted.items()}
    assert (report.samples, report.unlabelled, report.unused) == (15, 0, 1)
    again = tmp_path / "again"
    pack([str(tmp_path / "t.pkl")], again, scores=new)
    assert DatasetIndex.open(again).file.table == DatasetIndex.open(folder).file.table


def test_rows_for_all_traces_and_for_one(tmp_path: Path) -> None:
    folder = pack_traces(tmp_path, stated=False)
    rows = [(f"q{i}", "", i / 8) for i in range(5)]
    new = write_rows(tmp_path / "new.csv", *rows, ("q0", 1, 1), ("q1", 2, ""), ("q2", 9, 0.5))
    report = relabel(folder, new, missing_score="keep")
    wanted = {(f"q{i}", n): i / 8 for i in range(5) for n in range(3)}
    assert by_trace(folder) == wanted | {("q0", 1): 1.0, ("q1", 2): None}
    assert (report.unlabelled, report.unused) == (1, 1)  # q2 has no trace 9
    # A row for all that no trace needs is not used either.
    own = [(f"q{i}", n, 1) for i in range(5) for n in range(3)]
    assert relabel(folder, write_rows(tmp_path / "o.csv", *own, ("q0", "", 0))).unused == 1


def test_rows_of_some_traces_of_stated_numbers(tmp_path: Path) -> None:
    folder = pack_traces(tmp_path, stated=True, traces=2)
    rows = [(f"q{i}", n, n) for i in range(5) for n in (1, 2, 3)]
    new = write_rows(tmp_path / "new.csv", *rows)
    words = r"5 of 10 samples have no score, the first is question 'q\d', trace 0; add the scores"
    with pytest.raises(ScoreError, match=words):
        relabel(folder, new)
    report = relabel(folder, new, missing_score="keep")
    assert by_trace(folder) == {(f"q{i}", n): n or None for i in range(5) for n in range(2)}
    assert (report.unlabelled, report.unused) == (5, 10)
    none = write_rows(tmp_path / "none.csv", *((f"q{i}", 7, 1) for i in range(5)))
    words = r"such as 'q\d', trace 0, the file such as 'q0', trace 7; ids are"
    with pytest.raises(ScoreError, match=words):
        relabel(folder, none, missing_score="keep")


@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (0, 1), (1, 2, 3)])
def test_rows_of_other_traces_than_packing_numbered(rows: tuple[int, ...], tmp_path: Path) -> None:
    """The file's numbers and the data set's are of different sets of files."""
    folder = pack_traces(tmp_path, stated=False)
    before = contents(folder)
    others = [(f"q{i}", n, 1) for i in range(4) for n in range(3)]
    new = write_rows(tmp_path / "new.csv", *others, *(("q4", n, 1) for n in rows))
    shown = ", ".join(map(str, rows))
    words = f"question 'q4' has rows for traces {shown}, the data set traces 0, 1, 2, numbered in"
    for missing_score in ("error", "keep"):
        with pytest.raises(ScoreError, match=words):
            relabel(folder, new, missing_score=missing_score)
    assert contents(folder) == before


def test_missing_scores(packed: Packed, tmp_path: Path) -> None:
    before = contents(packed.folder)
    kept = dict(list(packed.scores.items())[:50])
    new = write_scores(tmp_path / "new.csv", {**kept, "unknown": 0.5})
    with pytest.raises(ScoreError, match=r"10 of 60 samples have no score, .*--missing-score keep"):
        relabel(packed.folder, new)
    assert contents(packed.folder) == before

    report = relabel(packed.folder, new, missing_score="keep")
    assert (report.changed, report.unlabelled, report.unused) == (10, 10, 1)
    index = DatasetIndex.open(packed.folder)
    for name in ("label", "score"):
        values = by_question(index, name)
        assert {question for question, value in values.items() if value == value} == set(kept)
    assert sum(entry.unlabelled for entry in index.file.splits.values()) == 10
    # No label before and after is no change; a label where there was none is one.
    assert relabel(packed.folder, new, missing_score="keep").changed == 0
    assert relabel(packed.folder, tmp_path / "scores.csv").changed == 10


def test_scores_of_another_data_set_erase_no_labels(packed: Packed, tmp_path: Path) -> None:
    before = contents(packed.folder)
    for scores in ({"other": 0.5}, {}):
        new = write_scores(tmp_path / "new.csv", scores)
        with pytest.raises(ScoreError, match="no score for any of the 60 samples"):
            relabel(packed.folder, new, missing_score="keep")
    assert contents(packed.folder) == before


def test_splits_with_one_class_are_told(packed: Packed, tmp_path: Path) -> None:
    index = DatasetIndex.open(packed.folder)
    val = set(index.question_ids(np.flatnonzero(index.columns["split"] == 1)))
    scores = {q: 1.0 if q in val else float(i % 2) for i, q in enumerate(packed.scores)}
    new = write_scores(tmp_path / "new.csv", scores)
    assert relabel(packed.folder, new).one_class == ("val",)
    assert relabel(packed.folder, new, threshold=-1.0).one_class == ("train", "val", "test")
    assert relabel(packed.folder, tmp_path / "scores.csv").one_class == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"missing_score": "drop"}, "'drop' is not one of error, keep; to drop samples pack again"),
        ({"missing_score": "x"}, "'x' is not one of error, keep$"),
        ({"threshold": float("nan")}, "threshold: nan is not a finite number"),
    ],
)
def test_options_have_a_vocabulary(packed: Packed, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        relabel(packed.folder, packed.folder.parent / "scores.csv", **options)


def test_a_score_file_that_is_a_pipe_has_no_hash(packed: Packed, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = write_scores(tmp_path / "new.csv", packed.scores).read_bytes()
    writer = threading.Thread(target=pipe.write_bytes, args=[content])
    writer.start()
    relabel(packed.folder, pipe)
    writer.join()
    labels = DatasetIndex.open(packed.folder).labels
    assert labels is not None
    assert (labels.file, labels.xxh3) == ("pipe", None)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=FULL_ONLY)])
def test_a_reader_goes_on_with_the_labels_it_opened(
    packed: Packed, tmp_path: Path, workers: int
) -> None:
    old = {question: float(score < 0.5) for question, score in packed.scores.items()}
    new = write_scores(tmp_path / "new.csv", {q: 1.0 - s for q, s in packed.scores.items()})

    def loader() -> TraceLoader:
        return TraceLoader(packed.folder, None, batch_size=4, num_workers=workers)

    begun, unread = loader(), loader()
    batches = iter(begun)
    first = next(batches)
    relabel(packed.folder, new)
    seen = dict(zip(first.question_ids, first.label.tolist(), strict=True))
    for batch in batches:
        seen.update(zip(batch.question_ids, batch.label.tolist(), strict=True))
    assert seen == old
    assert labels_of(begun) == old  # its next epoch, too
    assert labels_of(unread) == old
    fresh = loader()
    assert labels_of(fresh) == {q: float(1.0 - s < 0.5) for q, s in packed.scores.items()} != old
    for each in (begun, unread, fresh):
        each.close()


@pytest.mark.parametrize("spawned", [False, pytest.param(True, marks=FULL_ONLY)])
def test_spawned_workers_of_a_data_set_have_its_labels(
    spawned: bool, packed: Packed, tmp_path: Path
) -> None:
    """What a spawned worker has is a data set that was pickled."""
    from torch.utils.data import DataLoader

    from wdsbench import TraceDataset

    dataset = TraceDataset(packed.folder, None, fields=())
    new = write_scores(tmp_path / "new.csv", {q: 1.0 - s for q, s in packed.scores.items()})
    relabel(packed.folder, new)
    batches = pickle.loads(pickle.dumps(dataset))
    if spawned:
        workers: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
        batches = DataLoader(dataset, batch_size=None, **workers)
    seen = {sample["question_id"]: sample["label"].item() for sample in batches}
    assert seen == {question: float(score < 0.5) for question, score in packed.scores.items()}
