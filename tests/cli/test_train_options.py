"""``wdsbench train --search`` and ``--seeds``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import Packed, make_dataset
from cli.runner import run
from pictures import draw_coarsely
from trials import FULL

pytestmark = pytest.mark.usefixtures("no_controls")

SETTINGS = ("--epochs=1", "--hidden=16", "--batch-size=16", "--threads=1", "--device=cpu")


def train(packed: Packed, out: Path, *words: str) -> int:
    return run("train", str(packed.folder), "--out", str(out), *SETTINGS, *words)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=90)


@pytest.fixture(autouse=True)
def coarse_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_coarsely(monkeypatch)


def test_search_shows_the_trials_and_the_results(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(packed, tmp_path, "--search=2") == 0
    captured = capsys.readouterr()
    assert "Trials of lstm, on validation" in captured.out
    assert "Best: trial" in captured.out
    assert "Detectors on the test split" in captured.out
    assert "trial 2 of 2: training lstm ..." in captured.err
    written = json.loads((tmp_path / "search" / "lstm" / "search.json").read_text())
    assert len(written["trials"]) == 2
    results = json.loads((tmp_path / "results.json").read_text())
    found = results["config"]["search"]["lstm"]
    assert found["trials"] == 2
    assert found["settings"] == written["best"]["settings"]
    assert "A new study" not in captured.err  # optuna logs nothing


def test_search_prints_only_json_to_stdout(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(packed, tmp_path, "--search=1", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == json.loads((tmp_path / "results.json").read_text())
    assert "Trials of lstm" in captured.err


def test_search_refuses_untrained_detectors_and_bad_numbers(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (
        (("--detector=length", "--search=2"), "length cannot be searched"),
        (("--search=0",), "search is 0; it must be at least 1"),
        (("--search=2", "--seeds=3"), "--search 2 and --seeds 3 cannot be combined"),
    ):
        assert train(packed, tmp_path / "out", *words) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert expected in error
    assert not (tmp_path / "out").exists()


@pytest.mark.trials
def test_seeds_give_means_and_spreads(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "--detector=length,lstm" if FULL else "--detector=length"
    assert train(packed, tmp_path, "--seeds=2", "--seed=3", names) == 0
    assert "over seeds" in " ".join(capsys.readouterr().out.split())
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["config"]["seeds"] == [3, 4]
    assert results["detectors"][names.rpartition("=")[2].split(",")[-1]]["seeds"]["n"] == 2
    runs = [tmp_path / f"seed-000{seed}" / "results.json" for seed in (3, 4)]
    before = [path.stat().st_mtime_ns for path in runs]
    words = ("--seeds=3", "--seed=3", names, "--resume")
    assert train(packed, tmp_path, *words) == 0  # two of them are finished
    assert [path.stat().st_mtime_ns for path in runs] == before
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["config"]["seeds"] == [3, 4, 5]


def test_number_of_seeds_is_validated(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(packed, tmp_path, "--seeds=0") == 1
    assert "seeds is 0; it must be at least 1" in capsys.readouterr().err


def test_help_names_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--help") == 0
    printed = capsys.readouterr().out
    assert "--search" in printed
    assert "--seeds" in printed
