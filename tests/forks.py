"""Processes for commands and scripts that need no interpreter of their own.

An interpreter that has imported what training needs takes four seconds of a core before it does
anything. One of them, a server, is started per test run; it does nothing but fork, so that a
command costs what it does. What must hold in a fresh interpreter is tested in one.

    test ── words, environment, descriptors ──▶ server ── fork ──▶ waiter ── fork ──▶ command
         ◀──────────── number of the process, later how it ended ──────┘

The server has no threads when it forks, and OpenMP and BLAS use one in its children.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

TESTS = Path(__file__).parent

#: What takes long to import, and what `wdsbench train` and its ranks import.
IMPORTED = (
    *("torch._dynamo", "torch.distributed", "matplotlib.backends.backend_agg", "optuna"),
    *("wdsbench.cli.main", "wdsbench.train.report", "wdsbench.train.run"),
    *("wdsbench.train.search", "wdsbench.train.seeds"),
)
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Forked:
    """A running process, with the names of `subprocess.Popen`.

    Attributes:
        returncode: None while it runs; negative for a signal that killed it.
    """

    def __init__(self, request: dict[str, Any], **environment: str) -> None:
        """Start it; ``request`` says what runs (see `_run`), ``environment`` is beside our own."""
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by `communicate`
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115
        ours, theirs = socket.socketpair()
        self._told = ours
        everything = {**os.environ, **ONE_THREAD, **environment}
        message = json.dumps({**request, "environment": everything}).encode()
        with theirs:
            files = [theirs.fileno(), self._out.fileno(), self._err.fileno()]
            socket.send_fds(_server(), [message], files)
        self.pid = int(self._line())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = int(self._line())
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the end and return what it printed, on stdout and on stderr.

        Raises:
            subprocess.TimeoutExpired: It still runs after ``timeout`` seconds; it is killed.
        """
        if self.returncode is None and not select.select([self._told], [], [], timeout)[0]:
            self.kill()
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        self.poll()
        printed = []
        for file in (self._out, self._err):
            file.seek(0)
            printed.append(file.read())
            file.close()
        self._told.close()
        return printed[0], printed[1]

    def _line(self) -> str:
        """Return what the waiter says next, one number."""
        line = b""
        while not line.endswith(b"\n"):
            piece = self._told.recv(1)
            assert piece, "the server of forks has ended"
            line += piece
        return line.decode()


def start_command(words: Sequence[object], *, plots: bool = True, **environment: str) -> Forked:
    """Start ``wdsbench`` with ``words``; without ``plots`` a training draws none (3 seconds)."""
    return Forked({"command": [str(word) for word in words], "plots": plots}, **environment)


def start_code(code: str, *arguments: object, **environment: str) -> Forked:
    """Start a script with ``arguments`` in ``sys.argv[1:]``; it may import what tests import."""
    return Forked({"code": code, "arguments": [str(word) for word in arguments]}, **environment)


def start_file(path: Path, *arguments: object, **environment: str) -> Forked:
    """Start the script at ``path``, which is ``__main__`` there, with ``arguments``."""
    words = [str(word) for word in arguments]
    return Forked({"file": str(path), "arguments": words}, **environment)


@functools.cache
def _server() -> socket.socket:
    """Return the way to the server, which the first test process of a run starts."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    path = str(Path(tempfile.gettempdir()) / f"wdsbench-forks-{run}")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.suppress(FileExistsError, OSError):
        listening.bind(path)  # fails where another process was first
        listening.listen()
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__)), str(listening.fileno()), path],
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD},
        )
        process.wait()  # the server is a child of it, and no child of a test
    ours = socket.socket(socket.AF_UNIX)
    for _ in range(100):
        try:
            ours.connect(path)
            return ours
        except ConnectionRefusedError:  # bound, but it does not listen yet
            time.sleep(0.05)
    raise AssertionError("the server of forks does not answer")


def _serve(listening: socket.socket) -> None:
    """Fork for every request, until nobody can ask any more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch-geometric, which are no tests' matter
        for name in IMPORTED:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would otherwise write to, and so copy, every page
    doors = [listening.accept()[0]]
    waiters: list[int] = []
    while doors:
        for door in select.select([listening, *doors], [], [])[0]:
            if door is listening:
                doors.append(listening.accept()[0])
                continue
            message, files, _, _ = socket.recv_fds(door, 1 << 20, 3)
            waiters = [pid for pid in waiters if os.waitpid(pid, os.WNOHANG) == (0, 0)]
            if not message:
                doors.remove(door)
                door.close()
                continue
            waiters.append(os.fork())
            if waiters[-1] == 0:
                for other in (listening, *doors):
                    other.close()
                _wait_for(json.loads(message), *files)
            for file in files:
                os.close(file)


def _wait_for(request: dict[str, Any], told: int, out: int, err: int) -> NoReturn:
    """Fork once more: the child runs the request, the waiter says how it ended."""
    pid = os.fork()
    if pid:
        os.close(out)
        os.close(err)
        os.write(told, b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        os.write(told, b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for file in (told, out, err):
        os.close(file)
    code = 0
    try:
        _run(request)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    # As at the end of an interpreter, but that its modules are not taken down one by one: that
    # would copy every page of them, half a second's work.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:  # as interpreters end that were interrupted
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _run(request: dict[str, Any]) -> None:
    """Run ``{"command": words}``, or ``code`` or a ``file`` with ``arguments``, as if alone."""
    os.environ.clear()
    os.environ.update(request["environment"])
    if "command" in request:
        sys.argv = ["wdsbench", *request["command"]]
        if not request["plots"]:
            output = importlib.import_module("wdsbench.train.output")
            for plot in ("plot_roc", "plot_reliability", "plot_training"):
                setattr(output, plot, lambda *_, **__: None)
        runpy.run_module("wdsbench", run_name="__main__")
        return
    if "file" in request:
        path = str(request["file"])
        sys.argv = [path, *request["arguments"]]
        sys.path.insert(0, str(Path(path).parent))
        runpy.run_path(path, run_name="__main__")
        return
    sys.argv = ["-c", *request["arguments"]]
    sys.path.insert(0, str(TESTS))
    exec(compile(str(request["code"]), "<script>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    with socket.socket(fileno=int(sys.argv[1])) as door:
        try:
            _serve(door)
        finally:
            os.unlink(sys.argv[2])  # noqa: PTH108
