"""Logs written during a fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from train.planted import make_samples, store

from wdsbench.train.config import TrainConfig
from wdsbench.train.log import EpochRecord, MetricsLog
from wdsbench.train.run import train

pytestmark = pytest.mark.usefixtures("no_plots", "no_controls")

QUICK = TrainConfig(epochs=3, batch_size=32, hidden=4, resamples=50)
SAMPLES = make_samples(120, signal=1.0, seed=1)
RECORD = EpochRecord(0, 0.5, 0.75, 1.0, 100.0, best=True, step=4, learning_rate=1e-3)


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_lines_are_there_before_the_end(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.write("lstm", RECORD)
        log.write("gnn", RECORD)
        log.write("gnn", replace(RECORD, epoch=1))
        found = [(line["detector"], line["epoch"], line["val_auroc"]) for line in lines(tmp_path)]
        assert found == [("lstm", 0, 0.75), ("gnn", 0, 0.75), ("gnn", 1, 0.75)]


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with MetricsLog(None, tensorboard=True) as log:
        log.write("lstm", RECORD)
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = replace(QUICK, tensorboard=True, schedule="cosine", learning_rate=1e-2)
    train(store(SAMPLES).folder, ("length", "lstm"), tmp_path, config)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "lstm"))
    events.Reload()
    for name in ("loss", "val_auroc", "learning_rate"):
        values = [scalar.value for scalar in events.Scalars(name)]
        assert values == pytest.approx([line[name] for line in lines(tmp_path)], rel=1e-6)
    rates = [line["learning_rate"] for line in lines(tmp_path)]
    assert rates == sorted(rates, reverse=True)  # type: ignore[type-var]
    assert rates[-1] < 2e-3  # type: ignore[operator]
    train(store(SAMPLES).folder, ("lstm",), tmp_path, QUICK)
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize("steps", [1, 4, 6])
def test_at_most_so_many_steps(tmp_path: Path, steps: int) -> None:
    config = replace(QUICK, epochs=30, max_steps=steps)
    results = train(store(SAMPLES).folder, ("lstm",), tmp_path, config)
    found = lines(tmp_path)
    an_epoch = -(-72 // config.batch_size)
    assert found[-1]["step"] == steps
    assert len(found) == results.detectors["lstm"].epochs == -(-steps // an_epoch)
