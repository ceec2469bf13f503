"""Forks in the middle of anything, and other people's signal handlers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Packed, make_dataset
from scripts import fork_code, run_code
from trials import trials


def member_file(path: Path, array: Any) -> int:
    stream = io.BytesIO()
    np.save(stream, array)
    path.write_bytes(stream.getvalue())
    return len(stream.getvalue())


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"))


BUS = """
import faulthandler, mmap, os, signal, sys
import numpy as np
from wdsbench import _core
L, T, D = 4, 128, 1024
path, size = sys.argv[1], os.path.getsize(sys.argv[1])
files = _core.ShardFiles([os.fsencode(path)], [size], limit=1)
def start(threads):
    out = np.empty(L * T * D, np.float32)
    jobs = np.array([[0, 0, size, 0, 0, T, 0, T, 0, T * D]])
    return _core.start_rows(files, jobs, np.arange(L), layers_stored=L, features=D, token_padded=0,
                            out=out, threads=threads)
def wait(runs):
    failed = 0
    for run in runs:
        try:
            run.wait()
        except _core.FormatError:
            failed += 1
    return failed
start(2).wait()
"""


HUNG = "assert os.waitpid(pid, 0)[1] == 0, 'the child hung'"


# half::chosen_kernel() (and other function-local statics) are initialised by the first decode. A
# fork in that moment leaves the guard taken for ever: the child's first decode blocks in
# __cxa_guard_acquire. One in a few tries, so a w2 loader beside a young w0 loader may hang.
@pytest.mark.trials
def test_a_fork_during_the_first_decode(tmp_path: Path) -> None:
    size = member_file(tmp_path / "member", np.full((4, 64, 1024), 3, np.float16))
    code = f"""
import os, signal, sys
import numpy as np
from wdsbench import _core
L, T, D, size = 4, 64, 1024, {size}
def start(threads):
    files = _core.ShardFiles([os.fsencode(sys.argv[1])], [size], limit=1)
    out = np.zeros(L * T * D, np.float32)
    jobs = np.array([[0, 0, size, 0, 0, T, 0, T, 0, T * D]])
    return _core.start_rows(files, jobs, np.arange(L), layers_stored=L, features=D, token_padded=0,
                            out=out, threads=threads)
for number in range({trials(20, 400)}):
    fresh = os.fork()  # a process that has not decoded yet
    if fresh == 0:
        kept = start(1)
        pid = os.fork()
        if pid == 0:
            signal.alarm(5)
            start(1).wait()
            os._exit(0)
        os._exit(os.waitpid(pid, 0)[1] != 0)
    assert os.waitpid(fresh, 0)[1] == 0, number
"""
    run_code(code, tmp_path / "member")


# ReadAhead's destructor in a forked child destroys a condition variable on which the parent's
# thread waits: pthread_cond_destroy waits for ever, with the GIL held. A garbage iterator (an
# exception's traceback, say) that the collector of a forked worker or DataLoader worker finds does
# it.
def test_a_child_drops_the_reading_ahead_of_its_parent(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(bytes(100))
    code = f"""
import os, signal, sys, time
from wdsbench import _core
ahead = _core.ReadAhead(_core.ShardFiles([os.fsencode(sys.argv[1])], [100], limit=1))
ahead.request(0, 0, 10)
time.sleep(0.05)
pid = os.fork()
if pid == 0:
    signal.alarm(5)
    del ahead
    os._exit(0)
{HUNG}
"""
    run_code(code, tmp_path / "shard")


def test_a_child_collects_an_iterator_of_its_parent(packed: Packed) -> None:
    code = f"""
import gc, os, signal, sys, time
from wdsbench import TraceLoader
gc.disable()
loader = TraceLoader(sys.argv[1], split=None, tokens="all", layout="pad", batch_size=4)
batches = iter(loader)
next(batches)
cycle = [batches]
cycle.append(cycle)
del batches, cycle
time.sleep(0.05)
pid = os.fork()
if pid == 0:
    signal.alarm(5)
    gc.collect()
    os._exit(0)
{HUNG}
"""
    fork_code(code, packed.folder)


# ShardFiles::mutex_ may be held by the reading-ahead thread (or another) at the fork; the child
# that uses the same ShardFiles (TraceLoader keeps one; TraceDataset opens its own) waits for ever.
@pytest.mark.trials
def test_a_fork_while_a_shard_is_being_opened(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).write_bytes(bytes(100_000))
    code = f"""
import os, signal, sys
from wdsbench import _core
paths = [os.fsencode(os.path.join(sys.argv[1], str(i))) for i in range(50)]
files = _core.ShardFiles(paths, [100_000] * 50, limit=1)
ahead = _core.ReadAhead(files)
for number in range({trials(30, 400)}):
    for shard in range(50):
        ahead.request(shard, 0, 100_000)
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)
        files.read(0, 0, 10)
        os._exit(0)
    {HUNG}
"""
    run_code(code, tmp_path)


# The handler is armed when a decode is started, the fault comes later on a pool thread: somebody
# who calls faulthandler.enable() in between (a training script at its first batch) turns a cut
# shard into a crash.
def test_a_handler_installed_between_start_and_wait(tmp_path: Path) -> None:
    path = tmp_path / "member"
    member_file(path, np.ones((4, 128, 1024), np.float16))
    code = f"{BUS}\nruns = [start(1) for _ in range(100)]\nfaulthandler.enable()\n"
    run_code(f"{code}os.truncate(path, 10_000)\nassert wait(runs) > 0", path)


# A thread that blocks all signals (as servers' threads do) and reads itself: the kernel kills the
# process, for a fault may not be blocked. The pool unblocks SIGBUS for its own threads only.
@pytest.mark.parametrize("what", ["here()", "files.read(0, 0, size)"])
def test_a_thread_that_blocks_signals(tmp_path: Path, what: str) -> None:
    path = tmp_path / "member"
    member_file(path, np.ones((4, 128, 1024), np.float16))
    code = f"""{BUS}
def here():
    jobs = np.array([[0, 0, size, 0, 0, T, 0, T, 0, T * D]])
    _core.decode_rows(files, jobs, np.arange(L), layers_stored=L, features=D, token_padded=0,
                      out=np.empty(L * T * D, np.float32), threads=1)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.truncate(path, 10_000)
try:
    {what}
    sys.exit("no error")
except _core.FormatError:
    pass
"""
    run_code(code, path)


# faulthandler.disable() after ours was put before it: faulthandler restores our handler, whose
# `previous` is a faulthandler that is off and returns at once. A foreign fault then loops for ever
# (100 % of a core) instead of killing.
def test_a_foreign_fault_after_faulthandler_was_disabled(tmp_path: Path) -> None:
    path = tmp_path / "member"
    member_file(path, np.ones((4, 128, 1024), np.float16))
    code = f"""{BUS}
faulthandler.enable()
files.read(0, 0, 1)
faulthandler.disable()
signal.setitimer(signal.ITIMER_REAL, 5)  # SIGALRM
with open("/proc/self/fd/%d" % os.memfd_create("foreign"), "r+b") as file:
    file.truncate(8192)
    view = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
view[5000]
"""
    assert run_code(code, path, check=False).returncode == -7


# SIGBUS that is sent (kill, not a fault) is swallowed once: the handler goes back to default and
# returns, but no instruction is run again.
def test_a_sent_signal_kills(tmp_path: Path) -> None:
    path = tmp_path / "member"
    member_file(path, np.ones((4, 128, 1024), np.float16))
    code = f"{BUS}\nos.kill(os.getpid(), signal.SIGBUS)\nprint('alive')"
    done = run_code(code, path, check=False)
    assert (done.returncode, done.stdout) == (-7, "")
