"""Damage of index and table, foreign and left-over files, and tar files without an index."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Packed
from shards.damage import BLOCK, flip, places

from wdsbench.shards.check.problems import Problem
from wdsbench.shards.check.verify import verify_dataset, verify_tars
from wdsbench.shards.format.table import write_table
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.claim import MARKER_NAME, FolderClaim


def test_the_table(copy: Path) -> None:
    table = DatasetIndex.open(copy).file.table
    label = next(column for column in table.columns if column.name == "label")
    flip(copy / table.file, label.offset_bytes + 3)
    report = verify_dataset(copy)
    assert places(report) == [("table", table.file, None, None)]
    assert "XXH3" in report.problems[0].detail
    assert "checked as tar files without an index" in report.notes[0]
    # What can be checked without it still is.
    shard = copy / "train-000000.tar"
    flip(shard, 700)
    assert places(verify_dataset(copy))[1:] == [("hash", "train-000000.tar", None, None)]
    shard.unlink()
    assert places(verify_dataset(copy))[1:] == [("missing", "train-000000.tar", None, None)]
    (copy / table.file).unlink()
    assert places(verify_dataset(copy))[0][:2] == ("table", table.file)


def test_the_index(copy: Path) -> None:
    path = copy / "index.json"
    text = path.read_text()
    content = json.loads(text)

    def found(**changes: Any) -> list[Problem]:
        path.write_text(json.dumps({**content, **changes}))
        return verify_dataset(copy).problems

    splits = {**content["splits"], "val": {**content["splits"]["val"], "right": 99}}
    (problem,) = found(splits=splits)
    assert (problem.kind, problem.shard) == ("index", "index.json")
    fields = {**content["fields"], "edges": {**content["fields"]["edges"], "samples": 2}}
    (problem,) = found(fields=fields)
    assert "field edges of 2 samples, the table has 16" in problem.detail
    shards = [{**content["shardlist"][0], "xxh3": "0" * 16}, *content["shardlist"][1:]]
    (problem,) = found(shardlist=shards)
    assert (problem.kind, problem.shard, problem.member) == ("hash", "train-000000.tar", None)
    layers = [{**content["layers"][0], "max_abs": 0.5}, *content["layers"][1:]]
    (problem,) = found(layers=layers)
    assert "layer 0 reaches" in problem.detail
    layers = [{**content["layers"][0], "infinities": 3}, *content["layers"][1:]]
    (problem,) = found(layers=layers)
    assert "layer 0: 0 infinities, the index says 3" in problem.detail
    path.write_text(text[:-20])
    (problem,) = verify_dataset(copy).problems
    assert (problem.kind, problem.shard) == ("index", "index.json")
    path.unlink()
    report = verify_dataset(copy)
    assert [problem.kind for problem in report.problems] == ["index"]
    assert "no data set here" in report.problems[0].detail
    assert report.samples == 16


def test_a_table_that_cannot_be_followed(packed: Packed, tmp_path: Path) -> None:
    """With a right hash: places past any file, and ids that are no text."""
    index = DatasetIndex.open(packed.folder)
    columns = {name: np.array(column) for name, column in index.columns.items()}

    def problems(**changes: Any) -> list[Problem]:
        out = Path(shutil.copytree(packed.folder, tmp_path / "out"))
        table = write_table({**columns, **changes}, lambda name: out / name)
        file = index.file.model_copy(update={"table": table})
        (out / "index.json").write_bytes(file.to_bytes())
        found = verify_dataset(out)
        shutil.rmtree(out)
        return found.problems

    assert problems() == []
    member = index.member_name(2, "hidden.npy")
    for name, value in (("offset", 2**63), ("offset", 5), ("size", 2**62), ("xxh3", 1)):
        column = columns[f"hidden.npy.{name}"].copy()
        column[2] = value
        found = problems(**{f"hidden.npy.{name}": column})
        assert member in {problem.member for problem in found}, (name, value, found)
    ids = columns["question_bytes"].copy()
    ids[3] = 0xFF
    assert [p.kind for p in problems(question_bytes=ids)] == ["table"]
    short = columns["hidden.npy.xxh3"][:-1]
    assert [p.kind for p in problems(**{"hidden.npy.xxh3": short})] == ["table"]
    (problem,) = problems(shard=columns["shard"] + np.uint32(columns["shard"] == 0))[:1]
    assert "is not the one that holds it" in problem.detail


@pytest.mark.parametrize("url", ["../copy/train-000000.tar", "/etc/passwd", "val-000000.tar"])
def test_shards_outside_and_twice(copy: Path, url: str) -> None:
    path = copy / "index.json"
    content = json.loads(path.read_text())
    content["shardlist"][0]["url"] = url
    path.write_text(json.dumps(content))
    problem = verify_dataset(copy).problems[0]
    assert (problem.kind, problem.shard) == ("index", "index.json")
    assert url in problem.detail


def test_leftovers_are_notes(copy: Path) -> None:
    (copy / MARKER_NAME).write_text("train-000000.tar\n")
    (copy / ".train-000009.tar.tmp").write_bytes(b"x")
    (copy / "samples-0123456789abcdef.bin").write_bytes(b"x")
    (copy / "train-000077.tar").write_bytes(b"x")
    report = verify_dataset(copy)
    assert report.sound
    assert [note.split(":")[0] for note in report.notes] == [
        MARKER_NAME,
        ".train-000009.tar.tmp",
        "samples-0123456789abcdef.bin",
        "train-000077.tar",
    ]
    assert "was killed here" in report.notes[0]
    claim = FolderClaim(copy)
    assert "is writing here now" in verify_dataset(copy).notes[0]
    claim.commit()


def test_tars_without_an_index(copy: Path) -> None:
    (copy / "index.json").unlink()
    tars = sorted(copy.glob("*.tar"))
    report = verify_tars(tars)
    assert report.sound
    assert report.samples == 16
    first, second = tars[0], tars[1]
    size = first.stat().st_size
    with first.open("r+b") as file:
        file.truncate(size - 700)
    data = second.read_bytes()
    at = data.index(b"hidden.npy")
    states = at // BLOCK * BLOCK + BLOCK
    second.write_bytes(data[: states + 128] + b"\xff\x7f" + data[states + 130 :])
    report = verify_tars(tars)
    name = data[states - BLOCK :].split(b"\0")[0].decode()
    assert places(report) == [
        ("tar", first.name, None, size - 700),
        ("value", second.name, name, states + 128),
    ]
    (twice,) = [p for p in verify_tars([second, second]).problems if p.kind == "table"][:1]
    assert "twice" in twice.detail
