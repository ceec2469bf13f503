"""Relabelling: by the rules of packing, and nothing but labels changes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from builders import LAYERS, Packed, make_dataset, make_raw, write_pickle, write_scores

from wdsbench import TraceLoader
from wdsbench.errors import ScoreError
from wdsbench.pack import PackOptions, pack
from wdsbench.pack.relabel import relabel
from wdsbench.shards.index import DatasetIndex, LabelsEntry


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    return make_dataset(tmp_path)


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
    assert sum(entry["unlabelled"] for entry in index.class_counts.values()) == 10
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


@pytest.mark.parametrize("workers", [0, 2])
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


def test_spawned_workers_of_a_data_set_have_its_labels(packed: Packed, tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    from wdsbench import TraceDataset

    dataset = TraceDataset(packed.folder, None, fields=())
    new = write_scores(tmp_path / "new.csv", {q: 1.0 - s for q, s in packed.scores.items()})
    relabel(packed.folder, new)
    batches = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    seen = {sample["question_id"]: sample["label"].item() for sample in batches}
    assert seen == {question: float(score < 0.5) for question, score in packed.scores.items()}
