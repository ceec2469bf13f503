"""A search that is killed, stopped or spread over ranks has the same trials as a whole one."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import Packed, make_dataset
from forks import Forked, start_command
from scripts import rank_environments
from train.searches import (
    COUNT,
    QUICK,
    Killed,
    figures,
    killing,
    load_search,
    run,
    whole,
    without_test,
)
from trials import FULL, FULL_ONLY, full_only, trials

from wdsbench.errors import StoppedError
from wdsbench.train import search as search_module
from wdsbench.train.config import TrainConfig
from wdsbench.train.search import search
from wdsbench.train.trials import SEARCH_NAME, SearchResult

PACKED = TrainConfig(
    epochs=2,
    batch_size=trials(12, 6),
    hidden=16,
    shuffle=30,
    device="cpu",
    threads=1,
    resamples=200,
)
#: Trials of a search in processes.
SEARCHED = 4 if FULL else 2


@pytest.mark.trials
@pytest.mark.parametrize("after", [0, 3, 6] if FULL else [3])
def test_a_killed_search_resumes_with_the_same_trials(tmp_path: Path, after: int) -> None:
    with pytest.raises(Killed):
        run(tmp_path, max(2, after // 2 + 1), progress=killing(after))
    assert len(load_search(tmp_path).trials) == after // 2
    opened = without_test()
    # Each trial has two epochs; none is run twice.
    left = COUNT * 2 - after
    result = run(tmp_path, COUNT, resume=True, open_loader=opened, progress=killing(left))
    assert figures(result) == figures(whole()[0])
    assert [path.name for path in tmp_path.iterdir()] == [SEARCH_NAME]
    before = len(opened.calls)
    again = run(tmp_path, COUNT, resume=True, open_loader=opened)
    assert again.trials == result.trials
    assert len(opened.calls) - before == 2  # labels of train and val; nothing is trained
    assert len(run(tmp_path, 1, resume=True).trials) == COUNT  # earlier trials count


@pytest.mark.trials
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=FULL_ONLY), signal.SIGTERM])
def test_a_signal_stops_it_within_a_trial(tmp_path: Path, number: signal.Signals) -> None:
    count, ended = (COUNT, 2) if FULL else (2, 1)
    before = signal.getsignal(number)
    with pytest.raises(StoppedError, match="--resume"):
        run(tmp_path, count, progress=killing(2 * ended, send=number))
    assert signal.getsignal(number) is before
    expected = figures(whole()[0])[:count]
    assert figures(load_search(tmp_path)) == expected[:ended]
    assert figures(run(tmp_path, count, resume=True)) == expected


def test_a_signal_at_the_end_of_a_trial_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = search_module.fit_detector

    def fit_and_signal(*arguments: Any) -> Any:
        found = fit(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(search_module, "fit_detector", fit_and_signal)
    with pytest.raises(StoppedError, match="after trial 0 of lstm"):
        run(tmp_path, 1)
    assert len(load_search(tmp_path).trials) == 1


@full_only
def test_more_trials_may_be_added(tmp_path: Path) -> None:
    run(tmp_path, 2)
    more = run(tmp_path, COUNT, resume=True)
    assert figures(more) == figures(whole()[0])
    assert len(run(tmp_path, 2, resume=True).trials) == COUNT  # earlier trials count


def test_without_resume_it_starts_again(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(tmp_path, 2, progress=killing(3))
    mine = tmp_path / "trial-0009" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    result = run(tmp_path, 1, replace(QUICK, seed=4))
    assert len(result.trials) == 1
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {SEARCH_NAME, "trial-0009/notes.txt"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("packed"), traces=trials(80, 120), seed=5)


@pytest.fixture(scope="module")
def on_packed(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    out = tmp_path_factory.mktemp("on_packed")
    return search(packed.folder, "lstm", out, PACKED, SEARCHED, open_loader=without_test())


def start(packed: Packed, out: Path, *options: str, **environment: str) -> Forked:
    """Start the search and the training on the command line, with the settings of `PACKED`."""
    train = ("train", packed.folder, "--out", out, "--device=cpu", f"--search={SEARCHED}")
    settings = (f"--batch-size={PACKED.batch_size}", "--epochs=2", "--hidden=16", "--shuffle=30")
    return start_command([*train, *settings, "--threads=1", *options], plots=FULL, **environment)


def ended(out: Path) -> int:
    """Return how many trials have ended."""
    path = out / "search" / "lstm" / SEARCH_NAME
    return len(json.loads(path.read_text())["trials"]) if path.exists() else 0


def without_places(result: SearchResult) -> list[tuple[dict[str, Any], float | None]]:
    return [(trial.settings, trial.val_auroc) for trial in result.trials]


@full_only
@pytest.mark.slow
def test_a_killed_process_resumes_with_the_same_trials(
    packed: Packed, on_packed: SearchResult, tmp_path: Path
) -> None:
    options = ("--resume", "--checkpoint-seconds=0")
    for count in (1, 2):
        process = start(packed, tmp_path, *options)
        while process.poll() is None and ended(tmp_path) < count:
            time.sleep(0.002)
        time.sleep(0.05)  # into the next one
        process.kill()
        process.communicate(timeout=60)
        assert not (tmp_path / "results.json").exists()
    process = start(packed, tmp_path, *options)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found = load_search(tmp_path / "search" / "lstm")
    # The command line has one setting of its own: how often states are saved.
    assert without_places(found) == without_places(on_packed)
    results = json.loads((tmp_path / "results.json").read_text())
    assert on_packed.best is not None
    assert results["config"]["search"]["lstm"]["settings"] == on_packed.best.settings
    assert results["detectors"]["lstm"]["val_auroc"] == on_packed.best.val_auroc
    assert [path.name for path in (tmp_path / "search" / "lstm").iterdir()] == [SEARCH_NAME]


@full_only
@pytest.mark.slow
def test_ranks_try_the_same_settings(packed: Packed, tmp_path: Path) -> None:
    processes = [
        start(packed, tmp_path, "--rank-timeout-seconds=60", **environment)
        for environment in rank_environments(2)
    ]
    for process in processes:
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
    found = load_search(tmp_path / "search" / "lstm")
    assert [trial.state for trial in found.trials] == ["complete"] * SEARCHED
    assert found.best is not None
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["config"]["ranks"] == 2
    assert results["detectors"]["lstm"]["val_auroc"] == found.best.val_auroc
