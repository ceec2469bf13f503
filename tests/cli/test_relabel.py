"""``wdsbench relabel``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import Packed, make_dataset, write_scores
from cli.runner import run as command

from wdsbench.shards.read.index import DatasetIndex


def run(*words: object) -> int:
    return command("relabel", *words)


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    return make_dataset(tmp_path)


def test_text_report(packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = dict.fromkeys(packed.scores, 0.75)
    new = write_scores(tmp_path / "new[1].csv", {**scores, "other": 0.5}, "f1")
    changed = sum(score < 0.5 for score in packed.scores.values())
    assert run(packed.folder, "--scores", new, "--score-column", "f1", "--threshold", 0.5) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = DatasetIndex.open(packed.folder).counts
    assert lines[0] == (
        f"{changed} of 60 labels changed, 0 unlabelled (f1 < 0.5 of {new}) -> {packed.folder}"
    )
    for line, (split, samples) in zip(lines[1:4], counts.items(), strict=True):
        assert line.split()[:3] == [split, str(samples), "samples:"]
        assert line.endswith(f" 0 hallucinated, {samples} right, 0 unlabelled")
    assert lines[4] == "  note: 1 scores of the file belong to no sample"
    assert [line.split(" does not")[0] for line in lines[5:]] == [
        f"  warning: split {split}" for split in counts
    ]


def test_json_report(packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = dict(list(packed.scores.items())[:55])
    new = write_scores(tmp_path / "new.csv", few)
    assert run(packed.folder, "--scores", new, "--missing-score", "keep", "--json") == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    index = DatasetIndex.open(packed.folder)
    assert err == ""
    assert index.labels is not None
    assert report == {
        "shards": str(packed.folder),
        "labels": index.labels.model_dump(),
        "samples": 60,
        "changed": 5,
        "unlabelled": 5,
        "unused_scores": 0,
        "one_class": [],
        "splits": {name: entry.model_dump() for name, entry in index.file.splits.items()},
    }


def test_errors_are_one_line(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write_scores(tmp_path / "new.csv", {"other": 0.5})
    (tmp_path / "bare").mkdir()
    tar = next(packed.folder.glob("*.tar"))
    (tmp_path / "bare" / tar.name).write_bytes(tar.read_bytes())
    for words, error in (
        ((packed.folder, "--scores", new), "no score for any of the 60 samples"),
        ((tmp_path / "bare", "--scores", new), "create a data set from the raw traces"),
        ((tar, "--scores", new), "create a data set from the raw traces"),
        ((packed.folder, "--scores", tmp_path / "none.csv"), "cannot read scores"),
        ((packed.folder, "--scores", new, "--missing-score", "drop"), "not one of error, keep"),
    ):
        assert run(*words) == 1
        text = capsys.readouterr().err
        assert text.startswith("wdsbench: error: ")
        assert text.count("\n") == 1
        assert error in text
    assert run(packed.folder) == 2  # --scores is missing
