"""Faults of workers, their memory and the counters."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from builders import Packed, make_dataset
from loaded import assert_same, by_sample
from loader.teams import load
from scripts import fork_code, fork_file
from trials import FULL_ONLY, full_only, trials

from wdsbench import TraceLoader, processes
from wdsbench.errors import WdsbenchError
from wdsbench.loader import team as team_module
from wdsbench.loader.decode import BatchDecoder
from wdsbench.slabs import SharedSlab

HUNG = "assert os.waitpid(pid, 0)[1] == 0, 'the child hung'"


# If a forked child used the workers of its parent, both would read one pipe (UnpicklingError,
# hangs, missing samples).
@pytest.mark.trials
def test_a_forked_child_starts_its_own_workers(packed: Packed) -> None:
    code = f"""
import os, signal, sys
from wdsbench import TraceLoader
loader = TraceLoader(sys.argv[1], split=None, batch_size=1, num_workers=2)
def epochs():
    for _ in range({trials(1, 20)}):
        assert sum(len(batch) for batch in loader) == 60
epochs()
signal.alarm(20)
pid = os.fork()
if pid == 0:
    signal.alarm(15)
    try:
        epochs()
        os._exit(0)
    finally:
        os._exit(1)
epochs()
{HUNG}
"""
    fork_code(code, packed.folder)


# SharedSlab.__init__ closes the descriptor if posix_fallocate fails; __del__ must not close the
# same number again, which may be another file by then.
@pytest.mark.parametrize("code", [errno.ENOSPC, pytest.param(errno.ENOMEM, marks=FULL_ONLY)])
def test_lack_of_memory_closes_once(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    def words() -> str:
        try:
            SharedSlab(5_000_000)
        except WdsbenchError as error:
            return str(error)
        return ""

    gc.collect()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    closed: list[int] = []
    close = os.close

    def count(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)

    monkeypatch.setattr(os, "close", count)
    said = words()
    gc.collect()
    assert "cannot reserve 5 MB of shared memory" in said
    assert os.strerror(code) in said
    assert len(closed) == 1


def test_lack_of_memory_at_the_start_of_workers(
    packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [5]
    reserve = os.posix_fallocate

    def refuse(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:  # in the second worker's slabs
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    loader = TraceLoader(packed.folder, split=None, num_workers=2)
    with pytest.raises(WdsbenchError, match=r"No space left on device.*fewer workers"):
        next(iter(loader))
    monkeypatch.undo()
    gc.collect()
    assert sum(len(batch) for batch in loader) == 60


# A task larger than a pipe holds (TokenRanges of 4,500 rows); no main guard.
SCRIPT = """
import multiprocessing, sys, torch
from wdsbench import TraceLoader
multiprocessing.set_start_method(sys.argv[2], force=True)
def states(workers):
    loader = TraceLoader(sys.argv[1], split=None, num_workers=workers, batch_size=500)
    return torch.cat([batch.hidden for batch in loader])
assert torch.equal(states(1), states(0))
"""


@full_only
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_without_a_main_guard_and_many_samples(tmp_path: Path, method: str) -> None:
    packed = make_dataset(tmp_path, traces=4500, layers=1, features=1, tokens=2, shard_mb=100)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = fork_file(script, packed.folder, method)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_arguments_of_fresh_interpreters(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers receive all they need; forks replace the interpreters."""
    started: list[int] = []

    def fork(pipe: int, _: Any, ignored: Any) -> Any:
        def work() -> None:
            connection = Connection(os.dup(pipe))
            assert connection.recv() == sys.path
            processes._serve(connection, ignored)

        process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
        process.start()
        started.append(process.pid or 0)
        return process

    def start_interpreters(*arguments: Any, **named: Any) -> Any:
        return processes.start_workers(*arguments, **{**named, "fork": False})

    monkeypatch.setattr(processes, "_interpreter", fork)
    monkeypatch.setattr(team_module, "start_workers", start_interpreters)
    for options in ({"tokens": "all", "layout": "pad", "verify": "hash"}, {"layout": "graph"}):
        assert_same(by_sample(load(packed, **options)), by_sample(load(packed, 0, **options)))
    assert len(started) == 4


# Filled.done_at must be set if a worker decodes nothing (no states requested, or a batch larger
# than a slab); with 0, loader_waited_seconds would grow by the machine's uptime.
@pytest.mark.parametrize("fields", [(), ("meta",)])
def test_waiting_without_states(packed: Packed, fields: tuple[str, ...]) -> None:
    loader = TraceLoader(packed.folder, split=None, fields=fields, num_workers=1, batch_size=7)
    for _ in loader:
        pass
    assert loader.stats.loader_waited_seconds <= loader.stats.seconds * len(loader)


def test_batches_larger_than_a_slab_are_counted(
    packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_module, "SHARED_LIMIT_BYTES", 0)
    loader = TraceLoader(packed.folder, split=None, num_workers=1, batch_size=7)
    for _ in loader:
        pass
    stats = loader.stats
    assert stats.copied_batches == stats.batches
    assert stats.bytes_read == 60 * 3 * 8 * 2
    assert stats.decode_seconds > 0
    assert stats.loader_waited_seconds <= stats.seconds * len(loader)


# stats.copied_batches counts the batches of one epoch, not all tensors since the loader was made.
@pytest.mark.parametrize("layout", ["stack", "graph"])
def test_copied_batches_of_an_epoch(large: Packed, layout: str) -> None:
    loader = TraceLoader(large.folder, split=None, tokens="all", layout=layout, batch_size=2)
    kept = list(loader)
    first = loader.stats.copied_batches
    assert 0 < first <= loader.stats.batches
    kept += list(loader)
    assert loader.stats.copied_batches <= loader.stats.batches
    del kept
    gc.collect()
    for batch in loader:
        del batch
    assert loader.stats.copied_batches == 0


# An EOFError, BrokenPipeError or ConnectionResetError of a read in a worker must be reported, and
# not be mistaken for the death of the training process.
@pytest.mark.parametrize(
    "kind",
    [
        EOFError,
        *(pytest.param(kind, marks=FULL_ONLY) for kind in (BrokenPipeError, ConnectionResetError)),
    ],
)
def test_errors_like_a_broken_pipe_are_reported(
    packed: Packed, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: Any) -> None:
        raise kind("what happened")

    monkeypatch.setattr(BatchDecoder, "start", fail)
    loader = TraceLoader(packed.folder, split=None, num_workers=1)
    with pytest.raises(Exception, match="what happened"):
        next(iter(loader))
