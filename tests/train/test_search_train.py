"""Detectors trained with the settings that a search found for them."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from train.planted import Opened, store
from train.searches import QUICK, SAMPLES, Killed, killing, load_search, run
from trials import FULL, full_only

from wdsbench.errors import DetectorError, StoppedError
from wdsbench.train.checkpoint import load_detector
from wdsbench.train.run import Searched, train
from wdsbench.train.search import search_and_train
from wdsbench.train.trials import SearchResult

pytestmark = pytest.mark.usefixtures("no_plots", "no_controls")


def test_what_the_data_lack_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    shards = store(SAMPLES[::2], attention=("sketch",)).folder
    reason = run(tmp_path / "gnn", 2, detector="gnn", shards=shards).reason
    assert reason is not None
    assert re.match("not available: .*--attention", reason)
    results = search_and_train(shards, ("gnn", "lstm"), tmp_path, QUICK, 1)
    assert list(results.detectors) == ["lstm"]
    assert list(results.not_available) == ["gnn"]
    assert list(results.config["search"]) == ["lstm"]


@pytest.mark.trials
def test_each_detector_is_trained_with_the_settings_found_for_it(tmp_path: Path) -> None:
    searches: list[SearchResult] = []
    opened = Opened()
    names, count = ("lstm", "gnn"), 3 if FULL else 2

    def on_search(found: SearchResult) -> None:
        assert "test" not in [asked["split"] for asked in opened.calls]
        searches.append(found)

    results = search_and_train(
        store(SAMPLES).folder,
        names,
        tmp_path,
        QUICK,
        count,
        open_loader=opened,
        on_search=on_search,
    )
    assert [found.detector for found in searches] == list(names)
    written = json.loads((tmp_path / "results.json").read_text())["config"]
    assert written["hidden"] == 16  # the setting given
    for found in searches:
        best = found.best
        assert best is not None
        assert written["search"][found.detector] == {
            "settings": best.settings,
            "trials": count,
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


@full_only
def test_search_and_training_are_resumed_together(tmp_path: Path) -> None:
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
    with pytest.raises(Killed):
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
