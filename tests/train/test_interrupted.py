"""Training that is killed, stopped or spread over processes, through the command line on a packed
data set: a resumed run has the same numbers, and all processes end together.

Commands are forked (see `forks`); `make test-faults` also uses ``torchrun`` and sends a signal to
``python -m wdsbench``, and only its commands draw plots.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from builders import Packed, make_dataset
from forks import Forked, start_command
from scripts import rank_environments
from trials import FULL, FULL_ONLY, full_only, trials

from wdsbench.pack import PackOptions
from wdsbench.train.checkpoint import CARD_NAME

pytestmark = pytest.mark.timeout(400)

SETTINGS = [
    *("--detector", "lstm", "--epochs", str(trials(3, 5)), "--patience", "5", "--batch-size", "6"),
    *("--hidden", "8", "--shuffle", "30", "--device", "cpu", "--threads", "1"),
]
RESUMED = ("--resume", "--checkpoint-seconds", "0")
TOGETHER = (*RESUMED, "--rank-timeout-seconds", "60")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    options = PackOptions(attention=("edges",), threads=1)
    return make_dataset(tmp_path_factory.mktemp("packed"), traces=150, seed=5, options=options)


def command(packed: Packed, out: Path, *options: str) -> list[str]:
    return ["train", str(packed.folder), "--out", str(out), *SETTINGS, *options]


def start_forked(words: Sequence[str], **environment: str) -> Forked:
    return start_command(words, plots=FULL, **environment)


def run(words: Sequence[str]) -> None:
    process = start_forked(words)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err


def start_process(words: Sequence[str], *launcher: str) -> subprocess.Popen[str]:
    """Start ``python -m wdsbench``, under ``launcher`` if given, as a user does."""
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, "wdsbench", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def run_process(words: Sequence[str], *launcher: str) -> None:
    process = start_process(words, *launcher)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err


def figures(out: Path) -> dict[str, Any]:
    """Return the results of a run without its durations."""
    results = json.loads((out / "results.json").read_text())
    for name, result in results["detectors"].items():
        seconds = result.pop("seconds_per_epoch")
        assert seconds is None if name.endswith("control") else seconds > 0
    for name in ("checkpoint_seconds", "num_workers"):
        results["config"].pop(name)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for name in ("seconds", "samples_per_second", "data"):
            line.pop(name)
    return {"results": results, "metrics": lines, "scores": (out / "scores.csv").read_text()}


def weights(out: Path, detector: str = "lstm") -> dict[str, torch.Tensor]:
    folder = out / "checkpoints" / detector
    card = json.loads((folder / CARD_NAME).read_text())
    return safetensors.torch.load_file(folder / card["weights"])


def assert_same(out: Path, whole: Path) -> None:
    """Compare two runs, bit for bit."""
    assert figures(out) == figures(whole)
    ours, theirs = weights(out), weights(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not (out / "state").exists()


@pytest.fixture(scope="module")
def whole(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    run(command(packed, out))
    return out


@pytest.fixture(scope="module")
def pair(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of two ranks."""
    out = tmp_path_factory.mktemp("pair") / "run"
    run_ranks(packed, out, 2)
    return out


@full_only
def test_torchrun(packed: Packed, pair: Path, tmp_path: Path) -> None:
    free_port = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--max-restarts=0")
    torchrun = ("torch.distributed.run", "--nproc-per-node=2", *free_port, "-m")
    run_process(command(packed, tmp_path / "run", *TOGETHER), *torchrun)
    assert_same(tmp_path / "run", pair)


def saved_progress(out: Path) -> tuple[int, int]:
    """Return (epoch, step) of the saved state; (0, 0) where there is none."""
    try:
        progress = json.loads((out / "state" / "lstm" / "state.json").read_text())["progress"]
    except FileNotFoundError:
        return 0, 0
    return progress["epoch"], progress["step"]


@full_only
def test_killed_at_random_moments(packed: Packed, whole: Path, tmp_path: Path) -> None:
    """Every kill at a moment of its own, between two steps or within one, while saving or not."""
    generator = random.Random(0)
    places = set()
    steps = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    out = tmp_path / "run"
    for _ in range(7):
        before = saved_progress(out)
        process = start_forked(command(packed, out, *RESUMED))
        # Somewhere behind the place it stands at, and not at the very end.
        wanted = before[1] + generator.randint(1, max(1, steps // 6))
        while process.poll() is None and saved_progress(out)[1] < wanted:
            time.sleep(0.002)
        time.sleep(generator.random() * 0.02)
        process.kill()
        process.communicate(timeout=60)
        places.add(saved_progress(out))
        if (out / "results.json").exists():
            break
    assert len(places) > 3
    assert any(step % 18 for _, step in places)  # in the middle of an epoch
    run(command(packed, out, *RESUMED))
    assert_same(out, whole)


@full_only
def test_workers_may_change(packed: Packed, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for workers in ("2", "0", "1"):
        process = start_forked(command(packed, out, *RESUMED, "--num-workers", workers))
        wanted = saved_progress(out)[1] + 7
        while process.poll() is None and saved_progress(out)[1] < wanted:
            time.sleep(0.002)
        process.kill()
        process.communicate(timeout=60)
    run(command(packed, out, *RESUMED))
    assert saved_progress(out) == (0, 0)
    # An epoch that was dealt to two workers has another order, and as many steps.
    assert steps_of(out) == steps_of(whole)


def steps_of(out: Path) -> list[int]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.parametrize(
    ("number", "start"),
    [
        (signal.SIGINT, start_forked),
        pytest.param(signal.SIGINT, start_process, marks=FULL_ONLY),
        pytest.param(signal.SIGTERM, start_forked, marks=FULL_ONLY),
    ],
)
def test_a_signal_saves_first(
    packed: Packed, whole: Path, tmp_path: Path, number: signal.Signals, start: Callable[..., Any]
) -> None:
    out = tmp_path / "run"
    # The state is saved after epochs alone; one worker makes the batches that none makes.
    process = start(command(packed, out, "--num-workers", "1"))
    while process.poll() is None and saved_progress(out)[0] < 1:
        time.sleep(0.002)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped by a signal" in err
    assert "--resume" in err
    assert "Traceback" not in err
    run(command(packed, out, "--resume"))
    assert_same(out, whole)


@pytest.mark.trials
def test_resume_begins_where_there_is_nothing_and_ends_where_all_is_done(
    packed: Packed, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    if FULL:
        run(command(packed, out, "--resume"))
    else:
        shutil.copytree(whole, out)
    assert_same(out, whole)
    results = (out / "results.json").stat().st_mtime_ns
    run(command(packed, out, "--resume"))
    assert (out / "results.json").stat().st_mtime_ns == results
    process = start_forked([*command(packed, out, "--resume"), "--seed", "1"])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "has finished with seed 0, not 1" in err


@full_only
def test_other_settings_are_refused(packed: Packed, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_forked(command(packed, out, *RESUMED))
    while process.poll() is None and saved_progress(out)[1] < 5:
        time.sleep(0.002)
    process.kill()
    process.communicate(timeout=60)
    process = start_forked([*command(packed, out, *RESUMED), "--learning-rate", "0.5"])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "learning_rate was 0.002 when this training began and is 0.5 now" in " ".join(
        err.split()
    )


def assert_together(out: Path, whole: Path, ranks: int) -> None:
    """Compare a run of several ranks with that of one: same samples and epochs, other steps."""
    alone, together = figures(whole), figures(out)
    assert together["results"]["config"]["ranks"] == ranks
    counts = "n_pos", "n_neg"
    one = alone["results"]["detectors"]["lstm"]
    other = together["results"]["detectors"]["lstm"]
    assert [one[name] for name in counts] == [other[name] for name in counts]
    assert [line.split(",")[:3] for line in together["scores"].splitlines()] == [
        line.split(",")[:3] for line in alone["scores"].splitlines()
    ]
    assert len(together["metrics"]) == len(alone["metrics"])
    samples = alone["results"]["dataset"]["splits"]["train"]["n"]
    share = -(-samples // ranks)  # of the rank with most
    assert together["metrics"][0]["step"] == -(-share // 6)


@pytest.mark.slow
def test_ranks_end_together(whole: Path, pair: Path) -> None:
    assert_together(pair, whole, 2)


@full_only
def test_three_ranks_end_together(packed: Packed, whole: Path, tmp_path: Path) -> None:
    run_ranks(packed, tmp_path / "run", 3)
    assert_together(tmp_path / "run", whole, 3)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_the_run_goes_on(
    packed: Packed, pair: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    processes = start_ranks(packed, out, 2)
    while saved_progress(out)[1] < 8 and all(process.poll() is None for process in processes):
        time.sleep(0.005)
    processes[1].kill()
    _, err = processes[0].communicate(timeout=90)
    processes[1].communicate(timeout=60)
    assert processes[0].returncode == 1
    assert "lost the others" in err
    assert "--resume" in err
    assert "Traceback" not in err
    run_ranks(packed, out, 2)
    assert_same(out, pair)


def start_ranks(packed: Packed, out: Path, ranks: int) -> list[Forked]:
    """Start ranks as a launcher does, but without one, which would end them itself."""
    return [
        start_forked(command(packed, out, *TOGETHER), **environment)
        for environment in rank_environments(ranks)
    ]


def run_ranks(packed: Packed, out: Path, ranks: int) -> None:
    for process in start_ranks(packed, out, ranks):
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
