"""Bus errors of cut shards are errors of the reader; others are left to their handlers."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from files.made_shards import PAGE, SIZE, make_shards, open_paths
from scripts import run_code
from trials import FULL_ONLY

from wdsbench import _core

# What a process does with SIGBUS before, between and after; every step in its own line.
PRELUDE = """
import faulthandler, mmap, os, signal, sys
from wdsbench import _core
path = sys.argv[1]
size = os.path.getsize(path)
files = _core.ShardFiles([os.fsencode(path)], [size], limit=1)
files.read(0, 0, 1)
def cut_is_an_error():
    os.truncate(path, 4096)
    for _ in range(3):
        try:
            files.read(0, 0, size)
        except _core.FormatError as error:
            assert error.kind == "truncated" and error.offset_bytes == 4096, error
        else:
            raise AssertionError("no error")
def touch_a_cut_map():
    with open("/proc/self/fd/%d" % os.memfd_create("foreign"), "r+b") as file:
        file.truncate(8192)
        view = mmap.mmap(file.fileno(), 8192)
        file.truncate(0)
    view[5000]
"""


HANDLERS = {
    "none": "",
    "enabled before": "faulthandler.enable(); files.read(0, 0, 1)",
    "enabled after": "files.read(0, 0, 1); faulthandler.enable()",
    "enabled twice": "faulthandler.enable(); files.read(0, 0, 1); faulthandler.enable()",
    "enabled, disabled": "faulthandler.enable(); files.read(0, 0, 1); faulthandler.disable()",
    "armed, enabled, disabled": (
        "files.read(0, 0, 1); faulthandler.enable(); files.read(0, 0, 1); faulthandler.disable()"
    ),
    "again and again": (
        "for _ in range(5): faulthandler.enable(); files.read(0, 0, 1); faulthandler.disable();"
        " files.read(0, 0, 1); faulthandler.enable()"
    ),
    "default": "signal.signal(signal.SIGBUS, signal.SIG_DFL)",
    "ignored": "signal.signal(signal.SIGBUS, signal.SIG_IGN)",
    "python": "signal.signal(signal.SIGBUS, lambda *_: None)",
}


#: A Python handler returns and the fault is raised again, for ever, with us as without us.
FOREIGN = [name for name in HANDLERS if name != "python" and not name.endswith("disabled")]


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("preenabled", [False, pytest.param(True, marks=FULL_ONLY)])
def test_whoever_else_handles_bus_errors(tmp_path: Path, handler: str, preenabled: bool) -> None:
    (path,) = make_shards(tmp_path)
    first = "import faulthandler; faulthandler.enable()\n" if preenabled else ""
    done = run_code(f"{first}{PRELUDE}\n{HANDLERS[handler]}\ncut_is_an_error()", path)
    assert done.stderr == ""


@pytest.mark.parametrize("handler", FOREIGN)
@pytest.mark.parametrize("cut_before", [pytest.param(False, marks=FULL_ONLY), True])
def test_a_foreign_bus_error_kills_as_ever(tmp_path: Path, handler: str, cut_before: bool) -> None:
    (path,) = make_shards(tmp_path)
    ours = "cut_is_an_error()" if cut_before else ""
    code = f"{PRELUDE}\n{HANDLERS[handler]}\n{ours}\ntouch_a_cut_map()\nprint('alive')"
    done = run_code(code, path, check=False)
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == ""
    dumps = "enabled" in handler and "disabled" not in handler
    assert ("Fatal Python error: Bus error" in done.stderr) == (dumps or "again" in handler)


def test_a_foreign_bus_error_beside_ours(tmp_path: Path) -> None:
    # One thread meets guarded faults all the time; another thread's own still kills.
    (path,) = make_shards(tmp_path)
    code = f"""{PRELUDE}
import threading, time
def hammer():
    while True:
        cut_is_an_error()
threading.Thread(target=hammer, daemon=True).start()
time.sleep(0.05)
touch_a_cut_map()
"""
    assert run_code(code, path, check=False).returncode == -signal.SIGBUS


def test_many_threads_meet_the_same_cut(tmp_path: Path) -> None:
    (path,) = make_shards(tmp_path)
    files = open_paths([path])
    files.read(0, 0, 1)
    os.truncate(path, PAGE)
    kinds: list[str] = []

    def work() -> None:
        for _ in range(100):
            try:
                files.read(0, 0, SIZE)
            except _core.FormatError as error:
                kinds.append(error.kind)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kinds == ["truncated"] * 400
