"""Saved states: a refused resume keeps them, and a finished run removes them."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from train.planted import make_samples, store
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.errors import DetectorError, StoppedError
from wdsbench.train import fitting
from wdsbench.train.config import TrainConfig
from wdsbench.train.log import EpochRecord, MetricsLog
from wdsbench.train.results import load_results
from wdsbench.train.run import train
from wdsbench.train.state import STATE_NAME, load_state, remove_state, save_state
from wdsbench.train.stop import StopRequest

pytestmark = pytest.mark.usefixtures("no_plots", "no_controls")

T = TypeVar("T")

QUICK = TrainConfig(epochs=4, batch_size=32, hidden=4, resamples=20, patience=4)
SAMPLES = make_samples(120, signal=1.0, seed=1)


class _Killed(BaseException):
    """Stands for SIGKILL."""


def killing(epochs: int, send: signal.Signals | None = None, before: str = "training") -> Any:
    """Return a progress that ends the run before an epoch, or sends it a signal there."""

    def progress(items: Iterable[T], _total: int | None, what: str) -> Iterator[T]:
        for number, item in enumerate(items):
            if number == epochs and what.startswith(before):
                if send is None:
                    raise _Killed
                os.kill(os.getpid(), send)
            yield item

    return progress


def run(out: Path, config: TrainConfig = QUICK, **options: Any) -> Any:
    samples = options.pop("samples", SAMPLES)
    names = options.pop("names", ("lstm",))
    return train(store(samples).folder, names, out, config, **options)


def content(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def stopped(out: Path, epochs: int = 2, **options: Any) -> None:
    with pytest.raises(_Killed):
        run(out, progress=killing(epochs), **options)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was killed in the middle, to be copied."""
    out = tmp_path_factory.mktemp("half") / "run"
    stopped(out)
    return out


def test_what_is_refused_is_not_lost(half: Path, tmp_path: Path) -> None:
    out = shutil.copytree(half, tmp_path / "run")
    before = content(out)
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"learning_rate": 0.5}, "learning_rate was 0.002 when this training began and is 0.5"),
        ({"hidden": 8}, "hidden was 4 when this training began and is 8"),
    )
    for change, words in changes:
        for names in (("lstm",), ("length", "lstm")):
            with pytest.raises(DetectorError, match=words):
                run(out, replace(QUICK, **change), names=names, resume=True)
            assert content(out) == before


def test_a_damaged_state_stays_where_it_is(half: Path, tmp_path: Path) -> None:
    out = shutil.copytree(half, tmp_path / "run")
    tensors = next((out / "state" / "lstm").glob("tensors-*"))
    tensors.write_bytes(tensors.read_bytes()[:-1])
    before = content(out)
    with pytest.raises(DetectorError, match=f"{tensors.name} does not match the hash"):
        run(out, names=("length", "lstm"), resume=True)
    assert content(out) == before


def test_a_killed_writer_leaves_nothing_for_ever(half: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(half, tmp_path / "run") / "state" / "lstm"
    for name in (f".{STATE_NAME}.tmp", ".tensors-0123456789abcdef.safetensors.tmp"):
        (folder / name).write_bytes(b"half")
    state = load_state(folder)
    assert state is not None
    save_state(state, folder)
    tensors = json.loads((folder / STATE_NAME).read_text())["tensors"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([STATE_NAME, tensors])
    (folder / f".{STATE_NAME}.tmp").write_bytes(b"half")
    (folder / ".tensors-fedcba9876543210.safetensors.tmp").write_bytes(b"half")
    (folder / "tensors-fedcba9876543210.safetensors").write_bytes(b"whole, but not named")
    remove_state(folder)
    assert not folder.exists()


def test_a_loss_that_is_not_finite_is_said_in_mid_epoch(tmp_path: Path) -> None:
    config = replace(QUICK, checkpoint_seconds=0, learning_rate=1e36)
    results = run(tmp_path, config, names=("length", "lstm"))
    assert "the loss of epoch 0 is nan; lower the learning" in results.not_available["lstm"]


def test_a_run_that_ended_on_other_data_is_not_gone_on_with(tmp_path: Path) -> None:
    other = [replace(SAMPLES[0], label=1 - SAMPLES[0].label), *SAMPLES[1:]]
    first = run(tmp_path, names=("length",))
    assert run(tmp_path, names=("length",), resume=True) == first
    before = content(tmp_path)
    with pytest.raises(DetectorError, match="finished on other data"):
        run(tmp_path, names=("length",), samples=other, resume=True)
    assert content(tmp_path) == before


def test_what_comes_back_with_a_finished_fit(tmp_path: Path) -> None:
    """Killed between the end of a fit and that of the run: nothing is trained again."""
    samples = list(SAMPLES)
    for place in [p for p, sample in enumerate(samples) if sample.split == "train"][:7]:
        samples[place] = replace(samples[place], label=math.nan)
    fits: list[Any] = []

    def keep(result: Any) -> Any:
        fits.append(result)
        return result

    original = fitting.fit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "fit", lambda *a, **k: keep(original(*a, **k)))
        whole = run(tmp_path / "whole", samples=samples)
        patch.setattr("wdsbench.train.run.write_run", _raise_killed)
        with pytest.raises(_Killed):
            run(tmp_path / "run", samples=samples)
        patch.undo()
        patch.setattr(fitting, "fit", lambda *a, **k: keep(original(*a, **k)))
        again = run(tmp_path / "run", samples=samples, resume=True, progress=killing(0))
    assert [fit.left_out for fit in fits] == [7, 7, 7]
    assert fits[1].records == fits[2].records
    assert again.detectors["lstm"].auroc == whole.detectors["lstm"].auroc
    assert load_results(tmp_path / "run") == again


def _raise_killed(*_arguments: Any) -> None:
    raise _Killed


def test_the_schedule_stays_when_the_number_of_batches_changes(tmp_path: Path) -> None:
    config = replace(QUICK, schedule="cosine", learning_rate=1e-2)
    run(tmp_path / "whole", config)
    stopped(tmp_path / "run", config=config)

    class Longer(TraceLoader):
        def __len__(self) -> int:
            return super().__len__() + 1

    run(tmp_path / "run", config, resume=True, open_loader=Longer)
    lines = [
        [json.loads(line) for line in (tmp_path / out / "metrics.jsonl").read_text().splitlines()]
        for out in ("whole", "run")
    ]
    rates = [[line["learning_rate"] for line in found] for found in lines]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=FULL_ONLY)])
def test_where_nothing_is_to_be_saved_a_signal_ends_the_run_at_once(
    tmp_path: Path, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    for names, what in ((("probe_logistic",), "fitting probe"), (("lstm",), "fitting the input")):
        with pytest.raises(StoppedError, match="--resume continues from the last saved state"):
            run(tmp_path, names=names, progress=killing(1, send=number, before=what))
        assert signal.getsignal(number) is before
        assert not (tmp_path / "results.json").exists()


def test_a_signal_in_the_last_validation_is_not_lost(tmp_path: Path) -> None:
    names = ("lstm", "probe_logistic")
    whole = run(tmp_path / "whole")
    write = MetricsLog.write

    def write_and_signal(log: MetricsLog, detector: str, record: EpochRecord) -> None:
        write(log, detector, record)
        if record.epoch == QUICK.epochs - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsLog, "write", write_and_signal)
        with pytest.raises(StoppedError, match="after step 12"):
            run(tmp_path / "run", names=names)
    again = run(tmp_path / "run", names=names, resume=True, progress=killing(0))
    assert again.detectors["lstm"].auroc == whole.detectors["lstm"].auroc


def test_a_signal_is_deferred_within_a_block() -> None:
    stop = StopRequest(deferred=False)

    def signalled_twice() -> None:
        with stop.listening():
            with stop.deferring():
                os.kill(os.getpid(), signal.SIGTERM)
            assert stop.requested
            assert not stop.deferred
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(StoppedError):
        signalled_twice()
