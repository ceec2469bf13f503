"""The program: help, exit codes, one-line errors, JSON, and the main job."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from builders import Packed, make_dataset
from cli.runner import run
from pictures import draw_coarsely

import wdsbench
from wdsbench.cli.main import main

COMMANDS = (
    "demo",
    "extract",
    "score",
    "plan",
    "pack",
    "unpack",
    "relabel",
    "verify",
    "inspect",
    "view",
    "train",
    "predict",
    "bench",
)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=120)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_one_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert f"Example: wdsbench {command}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"wdsbench {wdsbench.__version__}\n"


def test_an_unknown_command_or_option_is_code_2() -> None:
    assert run("unpickle") == 2
    assert run("pack", "--no-such-option") == 2


def test_an_error_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", str(tmp_path), "--out", str(tmp_path / "run")) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("wdsbench: error: ")
    assert "no data set here" in error


def test_traceback_is_shown_on_request(tmp_path: Path) -> None:
    with pytest.raises(wdsbench.ShardError):
        main(["train", str(tmp_path), "--traceback"])


def test_a_wrong_value_is_refused_before_reading(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--traces", str(packed.folder.parent / "traces_data/*"), "--out", str(tmp_path / "o"))
    assert run("pack", *words, "--attention", "some") == 1
    assert "'some' is not one of full, edges, heads, sketch, none" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def packing(packed: Packed, out: Path) -> list[str]:
    data = packed.folder.parent
    return [
        *("--traces", str(data / "traces_data" / "*.pkl*")),
        *("--scores", str(data / "scores.csv")),
        *("--out", str(out), "--json"),
    ]


def assert_packed(printed: str, out: Path) -> None:
    report = json.loads(printed.splitlines()[-1])
    assert report["samples"] == 120
    assert sum(split["samples"] for split in report["splits"].values()) == 120
    assert (out / "index.json").exists()


def test_pack_from_a_shell(packed: Packed, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "wdsbench", "pack", *packing(packed, tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert_packed(done.stdout, tmp_path / "out")


def test_pack_by_the_tool(
    packed: Packed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["pack_shards.py", *packing(packed, tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "tools" / "pack_shards.py"), run_name="__main__")
    assert not ended.value.code
    assert_packed(capsys.readouterr().out, tmp_path / "out")


def test_train_writes_the_printed_results(
    packed: Packed,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw_coarsely(monkeypatch)
    out = tmp_path / "run"
    words = ("--detector", "length,logprob_mean", "--detector", "lstm", "--epochs", "1")
    assert run("train", str(packed.folder), "--out", str(out), *words, "--json") == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    stored = json.loads((out / "results.json").read_text())
    assert printed == stored
    controls = {"text_control", "question_control"}
    assert set(stored["detectors"]) == {"length", "logprob_mean", "lstm"} | controls
    for figures in stored["detectors"].values():
        low, high = figures["auroc_interval"]
        assert 0 <= low <= figures["auroc"] <= high <= 1
        assert figures["n_pos"] + figures["n_neg"] == stored["dataset"]["splits"]["test"]["n"]
    assert (out / "metrics.jsonl").read_text().count("\n") == 1
    for name in ("roc.png", "curves.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    assert (out / "checkpoints" / "lstm").is_dir()
