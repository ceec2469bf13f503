"""``wdsbench unpack``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import make_raw, write_pickle
from cli.runner import run as command

from wdsbench.pack import pack
from wdsbench.shards.read.index import DatasetIndex


def run(*words: object) -> int:
    return command("unpack", *words)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    raws = [{**make_raw(f"q/{i}", seed=i), "label": 1} for i in range(10)]
    write_pickle(tmp_path / "b.pkl", raws)
    pack([str(tmp_path / "b.pkl")], tmp_path / "out")
    return tmp_path / "out"


def test_command(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "Example: wdsbench unpack shards/" in capsys.readouterr().out
    assert run(packed, "--out", tmp_path / "a", "--format", "pkl") == 0
    assert capsys.readouterr().out.startswith("10 traces in ")
    assert run(packed, "--out", tmp_path / "b", "--split", "train", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["samples"] == DatasetIndex.open(packed).counts["train"]
    assert report["files"] == ["train-000000.npz"]
    assert run(packed, "--out", tmp_path / "c", "--format", "csv") == 1
    assert "'csv' is not one of npz, pkl" in capsys.readouterr().err
    assert run(packed, "--out", tmp_path / "c", "--split", "best") == 1
    assert run(tmp_path, "--out", tmp_path / "c") == 1
