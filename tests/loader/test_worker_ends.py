"""The death of a worker or of its parent, errors of workers, and how they start and stop."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import Packed, make_dataset
from forks import Forked, start_file
from loaded import assert_same, by_sample, check_states
from loader.teams import check_all, load, load_large, order, pids
from scripts import TESTS, fork_file, is_alive, run_file, until
from trials import FULL_ONLY, full_only, trials

from wdsbench import DecodeError, WdsbenchError
from wdsbench.loader.decode import BatchDecoder

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create"),
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("no_workers_left"),
]


@pytest.mark.trials
@pytest.mark.parametrize("victim", [pytest.param(0, marks=FULL_ONLY), 1])
def test_a_killed_worker_in_mid_epoch(large: Packed, victim: int) -> None:
    loader = load_large(large, batch_size=2)
    for _ in range(trials(1, 2)):
        batches = iter(loader)
        check_states(next(batches), large, "all")
        os.kill(pids()[victim], signal.SIGKILL)
        with pytest.raises(WdsbenchError, match="was killed by signal 9; out of memory"):
            check_all(batches, large)
        assert until(lambda: not pids())
    assert_same(by_sample(loader), by_sample(load_large(large, 0)))


def test_a_worker_killed_between_epochs(large: Packed) -> None:
    loader = load_large(large)
    order(loader)
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    with pytest.raises(WdsbenchError, match="was killed by signal 9"):
        order(loader)
    assert len(order(loader)) == 80


@pytest.mark.parametrize(
    "sig",
    [
        signal.SIGTERM,
        *(pytest.param(sig, marks=FULL_ONLY) for sig in (signal.SIGSEGV, signal.SIGBUS)),
    ],
)
def test_other_signals_are_named(large: Packed, sig: signal.Signals) -> None:
    loader = load_large(large, batch_size=1)
    batches = iter(loader)
    next(batches)
    for pid in pids():
        os.kill(pid, sig)
    with pytest.raises(WdsbenchError, match=f"was killed by signal {sig.value}"):
        check_all(batches, large)


def test_damage_ends_the_team_and_not_the_loader(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=20)
    loader = load(packed)
    index = loader.index
    path = index.shard_path(1)
    good = path.read_bytes()
    row = int(index.first_rows[1])
    offset = int(index.member("hidden.npy", "offset")[row])
    other = path.with_suffix(".other")
    other.write_bytes(good[:offset] + b"XX" + good[offset + 2 :])
    other.replace(path)
    for _ in range(2):
        with pytest.raises(DecodeError, match="not an npy member") as caught:
            order(loader)
        assert caught.value.shard == str(path)
        assert caught.value.member == index.member_name(row, "hidden.npy")
        assert "Traceback" in str(caught.value.__cause__)
        assert until(lambda: not pids())
    other.write_bytes(good)
    other.replace(path)
    for _ in range(2):
        assert len(order(loader)) == 20


class ForeignError(Exception):
    """Cannot be unpickled from its text."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def local_error() -> Exception:
    """Return an error of a class that cannot be imported."""

    class LocalError(Exception):
        pass

    return LocalError("here")


# (error in a worker, error of the loader, its words)
ERRORS: list[tuple[Exception, type[Exception], str]] = [
    (OSError(28, "No space left on device"), OSError, "No space left on device"),
    (ForeignError(1, 2), WdsbenchError, "ForeignError: 1 and 2"),
    (local_error(), WdsbenchError, "LocalError: here"),
]
MORE_ERRORS: list[tuple[Exception, type[Exception], str]] = [
    (ZeroDivisionError("by zero"), ZeroDivisionError, "by zero"),
    (MemoryError("too much"), MemoryError, "too much"),
]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [*ERRORS, *(pytest.param(*row, marks=FULL_ONLY) for row in MORE_ERRORS)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unexpected_error_is_reported(
    packed: Packed,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[Exception],
    words: str,
) -> None:
    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(BatchDecoder, "start", fail)
        loader = load(packed, 1)
        with pytest.raises(kind, match=words) as caught:
            order(loader)
    assert "Traceback" in str(caught.value.__cause__)
    assert "in fail" in str(caught.value.__cause__)
    assert len(order(loader)) == 60


SCRIPT = """
import multiprocessing, os, sys, time
sys.path.insert(0, sys.argv[1])
from wdsbench import TraceLoader

def main():
    if len(sys.argv) > 3:
        multiprocessing.set_start_method(sys.argv[3], force=True)
    loader = TraceLoader(sys.argv[2], split=None, num_workers=2, batch_size=5,
                         tokens="all", layout="pad")
    for _ in range(2):
        seen = [(i, round(float(batch.hidden[n].sum()), 3))
                for batch in loader for n, i in enumerate(batch.keys)]
        assert len(seen) == 60, len(seen)
        print(sorted(seen) == sorted((i, round(float(batch.hidden[n].sum()), 3))
              for batch in TraceLoader(sys.argv[2], split=None, tokens="all", layout="pad")
              for n, i in enumerate(batch.keys)))
"""


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(name, marks=FULL_ONLY) for name in ("spawn", "forkserver"))]
)
def test_start_methods(packed: Packed, tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "\nif __name__ == '__main__':\n    main()\n")
    done = fork_file(script, TESTS, packed.folder, method)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]
    assert done.stderr == ""


@full_only
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_without_a_main_guard(packed: Packed, tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "\nmain()\n")
    done = fork_file(script, TESTS, packed.folder, method)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]
    assert done.stderr == ""


ENDLESS = """
import multiprocessing, os, signal, sys, time
from wdsbench import TraceLoader

def main():
    os.setsid()
    # A shell starts background processes with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = TraceLoader(sys.argv[1], split=None, num_workers=2, batch_size=1)
    for epoch in range(100_000):
        for number, batch in enumerate(loader):
            if epoch == 1 and number == 5:
                pids = [child.pid for child in multiprocessing.active_children()]
                with open(sys.argv[3], "w") as file:
                    print(*pids, file=file)
            if sys.argv[2] == "held" and (epoch, number) >= (1, 5):
                time.sleep(0.01)

if __name__ == "__main__":
    main()
"""


@contextlib.contextmanager
def endless(packed: Packed, folder: Path, mode: str) -> Iterator[tuple[Forked, list[int]]]:
    """Yield a training process in mid-epoch and its workers; all have ended after the block."""
    script, numbers = folder / "script.py", folder / "pids"
    script.write_text(ENDLESS)
    process = start_file(script, packed.folder, mode, numbers)
    try:
        assert until(lambda: numbers.exists() and numbers.read_text().endswith("\n"))
        workers = [int(pid) for pid in numbers.read_text().split()]
        assert len(workers) == 2
        assert all(map(is_alive, workers))
        yield process, workers
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("mode", ["held"])
def test_a_killed_trainer_leaves_no_worker(packed: Packed, tmp_path: Path, mode: str) -> None:
    with endless(packed, tmp_path, mode) as (process, workers):
        process.kill()
        process.communicate(timeout=20)
        assert until(lambda: not any(map(is_alive, workers)), 10)


@pytest.mark.parametrize("mode", ["fast", pytest.param("held", marks=FULL_ONLY)])
def test_ctrl_c(packed: Packed, tmp_path: Path, mode: str) -> None:
    with endless(packed, tmp_path, mode) as (process, workers):
        time.sleep(0.05)
        sent = 0
        # Python ignores an exception in a finalizer, as in that of a batch.
        while process.poll() is None and sent < 4:
            os.killpg(process.pid, signal.SIGINT)
            sent += 1
            until(lambda: process.poll() is not None, 5)
        _, err = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT
        assert err.strip().splitlines()[-1].startswith("KeyboardInterrupt")
        assert err.count("KeyboardInterrupt") == sent == 1 + err.count("Exception ignored in")
        assert until(lambda: not any(map(is_alive, workers)), 10)


@full_only
def test_the_end_of_a_script_in_mid_epoch(packed: Packed, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom wdsbench import TraceLoader\n"
        "loader = TraceLoader(sys.argv[1], split=None, num_workers=2, batch_size=1)\n"
        "kept = [next(iter(loader))]\nopened = iter(loader)\nkept.append(next(opened))\n"
        "print(len(kept))\n"
    )
    done = run_file(script, packed.folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
