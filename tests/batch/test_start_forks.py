"""Forks and the end of the process while batches are decoded."""

from __future__ import annotations

import numpy as np
import pytest
from batch.members import Members
from scripts import run_code
from trials import trials

FORK = """
import gc, os, signal, sys
import numpy as np
from pathlib import Path
from wdsbench import _core
path, offset, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
L, T, D = 4, 64, 1024
def start(threads=2):
    files = _core.ShardFiles([os.fsencode(path)], [path.stat().st_size], limit=1)
    out = np.zeros(8 * L * T * D, np.float32)
    jobs = np.array([[0, offset, size, 0, 0, T, 0, T, i * L * T * D, T * D] for i in range(8)])
    run = _core.start_rows(files, jobs, np.arange(L), layers_stored=L, features=D, token_padded=0,
                           out=out, threads=threads)
    return run, out
def right(out):
    return bool((out == 3).all())
def child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 99
        try:
            code = work()
        finally:
            os._exit(code or 0)
    return pid
def ended(pid):
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status
"""


def run_fork(members: Members, body: str) -> None:
    place = members.put(np.full((4, 64, 1024), 3, np.float16))
    members.open()
    run_code(FORK + body, members.path, *place)


@pytest.mark.trials
def test_a_fork_while_runs_are_in_flight(members: Members) -> None:
    body = """
for number in range(TRIALS):
    runs = [start(threads) for threads in (1, 2, 3)]
    def work():
        for run, _ in runs:
            try:
                run.wait()
            except RuntimeError as error:
                assert "before the process was forked" in str(error)
            else:
                return 1
        fresh = [start(threads) for threads in (1, 2, 3)]
        for run, out in fresh:
            run.wait()
            if not right(out):
                return 2
        runs.clear()
        gc.collect()
    pid = child(work)
    for run, out in runs:
        run.wait()
        assert right(out)
    ended(pid)
"""
    run_fork(members, body.replace("TRIALS", str(trials(3, 40))))


@pytest.mark.trials
def test_a_child_that_drops_its_parents_runs(members: Members) -> None:
    body = """
for number in range(TRIALS):
    runs = [start(threads) for threads in (1, 2, 3)]
    def work():
        runs.clear()
        run, out = start()
        run.wait()
        return 0 if right(out) else 2
    pid = child(work)
    for run, out in runs:
        run.wait()
        assert right(out)
    ended(pid)
"""
    run_fork(members, body.replace("TRIALS", str(trials(4, 20))))


def test_a_child_of_a_child(members: Members) -> None:
    body = """
run, out = start()
def grandchild():
    run, out = start()
    run.wait()
    return 0 if right(out) else 2
def work():
    ended(child(grandchild))
    ended(child(grandchild))
    grandchild()
    ended(child(grandchild))
ended(child(work))
run.wait()
assert right(out)
"""
    run_fork(members, body)


def test_a_child_that_exits_as_python_does(members: Members) -> None:
    body = """
runs = [start(threads) for threads in (1, 2, 3)]
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    sys.exit(0)  # destructors and all
ended(pid)
for run, out in runs:
    run.wait()
    assert right(out)
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    run, out = start()
    sys.exit(0)
ended(pid)
"""
    run_fork(members, body)


@pytest.mark.trials
def test_a_fork_in_another_thread(members: Members) -> None:
    body = """
import threading
stop = threading.Event()
def decode():
    while not stop.is_set():
        run, out = start()
        run.wait()
        assert right(out)
threads = [threading.Thread(target=decode) for _ in range(2)]
for thread in threads:
    thread.start()
def work():
    run, out = start()
    run.wait()
    return 0 if right(out) else 2
for _ in range(TRIALS):
    ended(child(work))
stop.set()
for thread in threads:
    thread.join()
"""
    run_fork(members, body.replace("TRIALS", str(trials(4, 60))))


def test_the_end_of_the_process_with_runs_in_flight(members: Members) -> None:
    run_fork(members, "kept = [start(threads) for threads in (1, 2, 3) for _ in range(10)]")
