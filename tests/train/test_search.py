"""Searched settings: the same for a seed, better than bad ones, and found without reading the test
split.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from train.planted import make_placed_samples, store
from train.searches import COUNT, QUICK, Killed, figures, killing, run, whole, without_test
from trials import full_only, trials

from wdsbench.errors import DetectorError
from wdsbench.train import search as search_module
from wdsbench.train.search import search_and_train

pytestmark = pytest.mark.usefixtures("no_plots", "no_controls")


def test_the_given_setting_is_tried_first() -> None:
    found = whole()[0].trials
    first = found[0]
    assert first.settings == {"learning_rate": 2e-3, "hidden": 16, "depth": 1, "dropout": 0.3}
    assert [trial.number for trial in found] == list(range(COUNT))


@pytest.mark.trials
def test_the_same_seed_gives_the_same_trials(tmp_path: Path) -> None:
    first, count = whole()[0], trials(2, COUNT)
    assert figures(run(tmp_path / "again", count)) == figures(first)[:count]
    other = run(tmp_path / "other", 2, replace(QUICK, seed=1))
    assert other.trials[0].settings == first.trials[0].settings
    assert other.trials[1].settings != first.trials[1].settings


@full_only
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


def test_other_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(tmp_path, 2, progress=killing(1))  # in trial 0: nothing has ended yet
    with pytest.raises(DetectorError, match=r"batch_size was 32 when this search began and is 16"):
        run(tmp_path, 2, replace(QUICK, batch_size=16), resume=True)
    with pytest.raises(DetectorError, match=r"detector was 'lstm'"):
        run(tmp_path, 2, detector="gnn", resume=True)
    assert len(run(tmp_path, 1, replace(QUICK, checkpoint_seconds=1), resume=True).trials) == 1


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


def test_a_failed_trial_is_recorded_and_the_search_continues(
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
    alone = run(tmp_path, 1)
    assert (alone.best, alone.reason) == (None, None)


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
    shards = store(make_placed_samples(60, seed=3, num_heads=2)).folder
    config = replace(QUICK, epochs=1)
    result = run(tmp_path, 2, config, detector="charm", shards=shards)
    for trial in result.trials:
        assert list(trial.settings) == ["learning_rate", "hidden", "dropout"]
