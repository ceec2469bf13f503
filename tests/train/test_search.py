"""Searched settings: the same for a seed, better than bad ones, kept through a kill, and found
without a look at the test split.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import Packed, make_dataset
from forks import Forked, start_command
from rich.console import Console
from scripts import rank_environments
from train.planted import Opened, make_placed_samples, make_samples, store

from wdsbench.errors import DetectorError, StoppedError
from wdsbench.progress import T
from wdsbench.train import search as search_module
from wdsbench.train.checkpoint import load_detector
from wdsbench.train.config import TrainConfig
from wdsbench.train.run import Searched, train
from wdsbench.train.search import search, search_and_train
from wdsbench.train.trials import SEARCH_NAME, SearchResult, Trial, load_search, print_search

QUICK = TrainConfig(epochs=2, batch_size=32, hidden=16, depth=1, resamples=200, device="cpu")
SAMPLES = make_samples(240, signal=1.0, seed=3, logprob_signal=0.3)


def without_test() -> Opened:
    """Return a constructor that refuses to open the test split."""
    return Opened(refused=("test",))


def run(out: Path, trials: int, config: TrainConfig = QUICK, **options: Any) -> SearchResult:
    options.setdefault("open_loader", without_test())
    shards = options.pop("shards", None) or store(SAMPLES).folder
    return search(shards, options.pop("detector", "lstm"), out, config, trials, **options)


def figures(result: SearchResult) -> list[Trial]:
    """Return the trials without the times they took."""
    return [replace(trial, seconds=0.0) for trial in result.trials]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, Path]:
    out = tmp_path_factory.mktemp("whole") / "search"
    return run(out, 5), out


def test_the_given_setting_is_tried_first(whole: tuple[SearchResult, Path]) -> None:
    first = whole[0].trials[0]
    assert first.settings == {"learning_rate": 2e-3, "hidden": 16, "depth": 1, "dropout": 0.3}
    assert [trial.number for trial in whole[0].trials] == [0, 1, 2, 3, 4]


def test_the_same_seed_gives_the_same_trials(
    whole: tuple[SearchResult, Path], tmp_path: Path
) -> None:
    assert figures(run(tmp_path / "again", 5)) == figures(whole[0])
    other = run(tmp_path / "other", 2, replace(QUICK, seed=1))
    assert other.trials[0].settings == whole[0].trials[0].settings
    assert other.trials[1].settings != whole[0].trials[1].settings


def test_what_is_written(whole: tuple[SearchResult, Path]) -> None:
    result, out = whole
    assert [path.name for path in out.iterdir()] == [SEARCH_NAME]
    value = json.loads((out / SEARCH_NAME).read_text())
    assert len(value["trials"]) == 5
    for trial in value["trials"]:
        assert trial["state"] == "complete"
        assert 0 <= trial["val_auroc"] <= 1
        assert trial["epochs"] == 2
        assert trial["seconds"] > 0
    top = max(trial["val_auroc"] for trial in value["trials"])
    assert value["best"]["val_auroc"] == top
    assert value["best"] in value["trials"]
    assert result.best is not None
    assert value["best"]["settings"] == result.best.settings
    assert figures(load_search(out)) == figures(result)


def test_a_bad_setting_is_left_behind(tmp_path: Path) -> None:
    bad = replace(QUICK, learning_rate=1e-6, dropout=0.8, epochs=4)
    result = run(tmp_path, 6, bad)
    given = result.trials[0]
    assert given.settings["learning_rate"] == 1e-6
    assert given.val_auroc is not None
    assert result.best is not None
    assert result.best.val_auroc is not None
    assert result.best.val_auroc > given.val_auroc + 0.1
    assert result.best.settings["learning_rate"] >= 1e-4


class _Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def killing(after: int, *, send: signal.Signals | None = None) -> Any:
    """Return a `Progress` that kills before the epoch ``after``, counted over all trials."""
    count = 0

    def progress(items: Iterable[T], total: int | None, what: str) -> Iterable[T]:  # noqa: ARG001
        nonlocal count
        for item in items:
            if "training" in what:
                if count == after:
                    if send is None:
                        raise _Killed
                    os.kill(os.getpid(), send)
                count += 1
            yield item

    return progress


@pytest.mark.parametrize("after", [0, 3, 6])
def test_a_killed_search_goes_on_to_the_same_trials(
    whole: tuple[SearchResult, Path], tmp_path: Path, after: int
) -> None:
    with pytest.raises(_Killed):
        run(tmp_path, 5, progress=killing(after))
    assert len(load_search(tmp_path).trials) == after // 2
    opened = without_test()
    # Of five trials with two epochs each no epoch is run twice.
    left = 5 * 2 - after
    result = run(tmp_path, 5, resume=True, open_loader=opened, progress=killing(left))
    assert figures(result) == figures(whole[0])
    assert [path.name for path in tmp_path.iterdir()] == [SEARCH_NAME]
    before = len(opened.calls)
    again = run(tmp_path, 5, resume=True, open_loader=opened)
    assert again.trials == result.trials
    assert len(opened.calls) - before == 2  # labels of train and val; nothing is trained


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_within_a_trial(
    whole: tuple[SearchResult, Path], tmp_path: Path, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(StoppedError, match="--resume"):
        run(tmp_path, 5, progress=killing(4, send=number))
    assert signal.getsignal(number) is before
    assert figures(load_search(tmp_path)) == figures(whole[0])[:2]
    assert figures(run(tmp_path, 5, resume=True)) == figures(whole[0])


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


def test_more_trials_may_be_added(whole: tuple[SearchResult, Path], tmp_path: Path) -> None:
    run(tmp_path, 2)
    more = run(tmp_path, 5, resume=True)
    assert figures(more) == figures(whole[0])
    assert len(run(tmp_path, 2, resume=True).trials) == 5  # what was tried counts


def test_without_resume_it_begins_anew(tmp_path: Path) -> None:
    with pytest.raises(_Killed):
        run(tmp_path, 3, progress=killing(5))
    mine = tmp_path / "trial-0009" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    result = run(tmp_path, 1, replace(QUICK, seed=4))
    assert len(result.trials) == 1
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {SEARCH_NAME, "trial-0009/notes.txt"}


def test_other_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(_Killed):
        run(tmp_path, 2, progress=killing(1))  # in trial 0: nothing has ended yet
    with pytest.raises(DetectorError, match=r"batch_size was 32 when this search began and is 16"):
        run(tmp_path, 2, replace(QUICK, batch_size=16), resume=True)
    with pytest.raises(DetectorError, match=r"detector was 'lstm'"):
        run(tmp_path, 2, detector="gnn", resume=True)
    assert len(run(tmp_path, 2, replace(QUICK, checkpoint_seconds=1), resume=True).trials) == 2


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 2}', '{"format": 1, "trials": [1]}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / SEARCH_NAME).write_text(content)
    with pytest.raises(DetectorError, match=r"not a search\.json of this version"):
        run(tmp_path, 1, resume=True)
    with pytest.raises(DetectorError, match=r"not a search\.json of this version"):
        load_search(tmp_path)


def test_a_search_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DetectorError, match="no search at"):
        load_search(tmp_path)


@pytest.mark.parametrize("name", ["length", "logprob_mean", "probe_mlp", "attention_logistic"])
def test_only_what_is_trained_is_searched(name: str, tmp_path: Path) -> None:
    opened = without_test()
    with pytest.raises(ValueError, match=rf"{name} cannot be searched: .* by gradient descent"):
        run(tmp_path / "out", 2, detector=name, open_loader=opened)
    with pytest.raises(ValueError, match=rf"{name} cannot be searched"):
        search_and_train("x", ("lstm", name), tmp_path / "out", QUICK, 2, open_loader=opened)
    assert opened.calls == []
    assert not (tmp_path / "out").exists()


def test_arguments_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="trials is 0; it must be at least 1"):
        run(tmp_path, 0)
    with pytest.raises(ValueError, match="'oracle' is not one of"):
        run(tmp_path, 1, detector="oracle")
    with pytest.raises(ValueError, match="no detector"):
        search_and_train("x", (), tmp_path, QUICK, 1)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"pip install 'wdsbench\[search\]'"):
        run(tmp_path, 1)


def test_a_trial_that_fails_is_recorded_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = search_module.fit_detector

    def fit_wide_ones_only(spec: Any, run: Any) -> Any:
        if run.source.config.hidden == 16:
            raise DetectorError("the loss of epoch 0 is nan")
        return fit(spec, run)

    monkeypatch.setattr(search_module, "fit_detector", fit_wide_ones_only)
    result = run(tmp_path, 4)
    first = result.trials[0]
    assert (first.state, first.val_auroc, first.epochs) == ("failed", None, 0)
    assert first.reason == "the loss of epoch 0 is nan"
    assert result.best is not None
    assert result.best.settings["hidden"] != 16
    with pytest.raises(
        DetectorError, match="no settings of lstm were found: all 1 trials failed: the loss"
    ):
        run(tmp_path, 1)


def test_a_trial_too_large_for_the_gpu_is_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = search_module.fit_detector

    def fit_small_ones_only(spec: Any, run: Any) -> Any:
        if run.source.config.hidden > 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmuch")
        return fit(spec, run)

    monkeypatch.setattr(search_module, "fit_detector", fit_small_ones_only)
    result = run(tmp_path, 3)
    assert result.best is not None
    assert result.best.settings["hidden"] == 16
    reasons = {trial.reason for trial in result.trials if trial.state == "failed"}
    assert reasons == {"no memory left on cpu: CUDA out of memory. Tried to allocate"}


def test_what_the_detector_does_not_follow_is_not_searched(tmp_path: Path) -> None:
    shards = store(make_placed_samples(150, seed=3, num_heads=2)).folder
    config = replace(QUICK, epochs=1)
    result = run(tmp_path, 2, config, detector="charm", shards=shards)
    for trial in result.trials:
        assert list(trial.settings) == ["learning_rate", "hidden", "dropout"]


def test_what_the_data_lack_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    shards = store(SAMPLES, attention=("sketch",)).folder
    with pytest.raises(DetectorError, match=r"of gnn were found: not available: .*--attention"):
        run(tmp_path / "gnn", 2, detector="gnn", shards=shards)
    results = search_and_train(shards, ("gnn", "lstm"), tmp_path, QUICK, 2)
    assert list(results.detectors) == ["lstm"]
    assert list(results.not_available) == ["gnn"]
    assert list(results.config["search"]) == ["lstm"]


def test_each_detector_is_trained_with_the_settings_found_for_it(tmp_path: Path) -> None:
    searches: list[SearchResult] = []
    opened = Opened()
    names = ("lstm", "gnn")

    def on_search(found: SearchResult) -> None:
        assert "test" not in [asked["split"] for asked in opened.calls]
        searches.append(found)

    results = search_and_train(
        store(SAMPLES).folder, names, tmp_path, QUICK, 3, open_loader=opened, on_search=on_search
    )
    assert [found.detector for found in searches] == list(names)
    written = json.loads((tmp_path / "results.json").read_text())["config"]
    assert written["hidden"] == 16  # the setting given
    for found in searches:
        best = found.best
        assert best is not None
        assert written["search"][found.detector] == {
            "settings": best.settings,
            "trials": 3,
            "val_auroc": best.val_auroc,
        }
        # The same seed, the same fit: it ends where the trial ended.
        result = results.detectors[found.detector]
        assert result.val_auroc == pytest.approx(best.val_auroc, abs=1e-9)
        shape = load_detector(tmp_path / "checkpoints" / found.detector).shape
        assert shape is not None
        assert shape.hidden == best.settings["hidden"]
        assert shape.depth == best.settings["depth"]
        kept = load_search(tmp_path / "search" / found.detector)
        assert kept.trials == found.trials
    assert "test" in [asked["split"] for asked in opened.calls]


def test_search_and_training_go_on_together(tmp_path: Path) -> None:
    config, shards = replace(QUICK, epochs=3), store(SAMPLES).folder

    def go(out: str, trials: int, **options: Any) -> Any:
        return search_and_train(shards, ("lstm",), tmp_path / out, config, trials, **options)

    go("whole", 2)
    with pytest.raises(StoppedError):  # in the second epoch of the training after two trials
        go("killed", 2, progress=killing(7, send=signal.SIGTERM))
    assert (tmp_path / "killed" / "state" / "lstm").exists()
    assert len(load_search(tmp_path / "killed" / "search" / "lstm").trials) == 2
    go("killed", 2, resume=True)
    one, other = ((tmp_path / out / "scores.csv").read_text() for out in ("whole", "killed"))
    assert one == other
    results = tmp_path / "killed" / "results.json"
    before = results.stat().st_mtime_ns
    go("killed", 2, resume=True)
    assert results.stat().st_mtime_ns == before
    # With more trials the best may be another: what was trained before goes first.
    with pytest.raises(_Killed):
        go("killed", 3, resume=True, progress=killing(0))
    assert not results.exists()
    assert go("killed", 3, resume=True).config["search"]["lstm"]["trials"] == 3
    before = results.stat().st_mtime_ns
    with pytest.raises(DetectorError, match="seed was 0 when this search began and is 1"):
        search_and_train(
            shards, ("lstm",), tmp_path / "killed", replace(config, seed=1), 4, resume=True
        )
    assert results.stat().st_mtime_ns == before


def test_settings_for_a_detector_that_is_not_trained_are_refused(tmp_path: Path) -> None:
    searched = {"gnn": Searched({"hidden": 32}, 1, 0.5)}
    with pytest.raises(ValueError, match=r"searched for gnn; it must be one of .*: lstm"):
        train("x", ("lstm",), tmp_path, QUICK, searched=searched)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"learning_rate": 0.002, "hidden": 16, "depth": 1, "dropout": 0.3}
    trials = [
        Trial(0, settings, 0.5, 1, 0.1, "complete"),
        Trial(1, {**settings, "learning_rate": 0.00123, "depth": 3}, 0.75, 1, 0.1, "complete"),
        Trial(2, settings, None, 0, 0.1, "failed", "the loss of epoch 0 is nan"),
    ]
    print_search(SearchResult("lstm", trials), Console(width=100))
    printed = capsys.readouterr().out
    assert "Trials of lstm, on validation" in printed
    for cell in ("learning rate", "0.00123", "0.750", "failed"):
        assert cell in printed
    assert "trial 2: the loss of epoch 0 is nan" in printed
    assert (
        "Best: trial 1 (--learning-rate 0.00123 --hidden 16 --depth 3 --dropout 0.3)"
        in " ".join(printed.split())
    )


PACKED = TrainConfig(
    epochs=2, batch_size=6, hidden=16, shuffle=30, device="cpu", threads=1, resamples=200
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("packed"), traces=120, seed=5)


@pytest.fixture(scope="module")
def on_packed(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    out = tmp_path_factory.mktemp("on_packed")
    return search(packed.folder, "lstm", out, PACKED, 4, open_loader=without_test())


def start(packed: Packed, out: Path, *options: str, **environment: str) -> Forked:
    """Start four trials and the training on the command line, with the settings of `PACKED`."""
    train = ("train", packed.folder, "--out", out, "--device=cpu", "--search=4")
    settings = ("--epochs=2", "--batch-size=6", "--hidden=16", "--shuffle=30", "--threads=1")
    return start_command([*train, *settings, *options], **environment)


def ended(out: Path) -> int:
    """Return how many trials have ended."""
    path = out / "search" / "lstm" / SEARCH_NAME
    return len(json.loads(path.read_text())["trials"]) if path.exists() else 0


def without_places(result: SearchResult) -> list[tuple[dict[str, Any], float | None]]:
    return [(trial.settings, trial.val_auroc) for trial in result.trials]


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_trials(
    packed: Packed, on_packed: SearchResult, tmp_path: Path
) -> None:
    options = ("--resume", "--checkpoint-seconds=0")
    for trials in (1, 2):
        process = start(packed, tmp_path, *options)
        while process.poll() is None and ended(tmp_path) < trials:
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
    assert [trial.state for trial in found.trials] == ["complete"] * 4
    assert found.best is not None
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["config"]["ranks"] == 2
    assert results["detectors"]["lstm"]["val_auroc"] == found.best.val_auroc
