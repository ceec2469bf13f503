"""Worker processes and the messages between them and their parent.

A worker is forked, or it is a fresh interpreter that imports only what its target needs. Neither
runs the main script again, so no main guard is needed. Parent and worker each hold one end of a
socket. When one dies, the other gets an error instead of waiting: the parent
:class:`WorkerEndedError`, the worker :class:`ParentGoneError`, which ends it. Workers ignore
Ctrl-C, which their parent handles; ``None`` is the message that ends a worker.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from wdsbench.errors import WdsbenchError

#: How long a worker has to end by itself before it is killed.
QUIT_SECONDS = 5.0

#: How often a worker that waits checks that its parent lives.
ORPHAN_SECONDS = 2.0

_PROGRAM = """
import sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
from wdsbench.processes import _serve
_serve(pipe, [int(number) for number in sys.argv[2:]])
"""


class WorkerEndedError(Exception):
    """A worker has ended with ``exit_code``; if negative, by a signal."""

    def __init__(self, exit_code: int | None) -> None:
        self.exit_code = exit_code
        if exit_code is not None and exit_code < 0:
            super().__init__(f"was killed by signal {-exit_code}")
        else:
            super().__init__(f"ended with code {exit_code}")


class ParentGoneError(Exception):
    """The parent of this worker has ended."""


class Channel:
    """A worker's end of the socket."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parent = os.getppid()
        self._poll = select.poll()  # kept: Connection.poll makes a selector per call, 20 us each
        self._poll.register(connection.fileno(), select.POLLIN)

    def waiting(self) -> bool:
        """Return True if there is a message."""
        return bool(self._poll.poll(0))

    def receive(self) -> Any:
        """Return the next message; ParentGoneError if there will be none."""
        while not self._poll.poll(ORPHAN_SECONDS * 1e3):
            if os.getppid() != self._parent:
                raise ParentGoneError
        try:
            return self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise ParentGoneError from error

    def send(self, message: Any, descriptor: int | None = None) -> None:
        """Send a message, and an open file with it; ParentGoneError if the parent has ended."""
        try:
            self._connection.send(message)
            if descriptor is not None:
                reduction.send_handle(self._connection, descriptor, self._parent)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ParentGoneError from error


class WorkerProcess:
    """A worker and the parent's end of its socket; made by :func:`start_workers`."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.pipe = pipe
        self._process = process
        # Kept: multiprocessing's own wait() and poll() make a selector per call, 20 us each.
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), select.POLLIN)
        if process.sentinel is not None:
            self._poll.register(process.sentinel, select.POLLIN)

    def send(self, message: Any) -> None:
        """Send a message; WorkerEndedError if the process has ended."""
        try:
            self.pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._ended() from None

    def receive(self) -> Any:
        """Return the next message; WorkerEndedError if the process has ended and sent no more."""
        ready = [descriptor for descriptor, _ in self._poll.poll()]
        try:
            if self.pipe.fileno() in ready:
                return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            pass
        raise self._ended()

    def receive_descriptor(self) -> int:
        """Return the open file after a message; WorkerEndedError if the process has ended."""
        try:
            return reduction.recv_handle(self.pipe)
        except (EOFError, OSError):
            raise self._ended() from None

    def join(self, *, kill: bool = False) -> None:
        """Wait for the end of the process; kill it now, or after QUIT_SECONDS."""
        if not kill:
            self._process.join(QUIT_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()

    def _ended(self) -> WorkerEndedError:
        self._process.join(QUIT_SECONDS)
        return WorkerEndedError(self._process.exitcode)


class _Interpreter(subprocess.Popen[bytes]):
    """A fresh interpreter, with the methods of ``multiprocessing.Process``."""

    sentinel = None  # not needed: no other process holds the worker's end of the socket

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout)

    @property
    def exitcode(self) -> int | None:
        code: int | None = self.poll()
        return code


def _interpreter(
    pipe: int, descriptors: Sequence[int], ignored: Sequence[signal.Signals]
) -> _Interpreter:
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-c", _PROGRAM, str(pipe)]
    return _Interpreter(
        [*command, *(str(int(each)) for each in ignored)],
        pass_fds=[pipe, *descriptors],
        stdin=subprocess.DEVNULL,
    )


def start_workers(
    target: Callable[..., None],
    arguments: Sequence[tuple[Any, ...]],
    *,
    fork: bool,
    name: str = "wdsbench-worker",
    descriptors: Sequence[Sequence[int]] | None = None,
) -> list[WorkerProcess]:
    """Start processes that call ``target(channel, *arguments[i])``, a function of a module.

    ``fork`` takes milliseconds; otherwise fresh interpreters start, which is safe beside threads
    and CUDA, and receive pickled arguments. ``descriptors`` are the open files of each worker,
    which have the same numbers there. WorkerEndedError: a worker did not receive its arguments.
    """
    # A parent that handles SIGTERM (training saves its state first) needs its workers until then,
    # and launchers send it to all processes of a job.
    ignored = [signal.SIGINT]
    if callable(signal.getsignal(signal.SIGTERM)):
        ignored.append(signal.SIGTERM)
    workers: list[WorkerProcess] = []
    try:
        # Blocked until the worker ignores them: until then it has this process's handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ignored)
        try:
            for number, values in enumerate(arguments):
                ours, theirs = multiprocessing.Pipe()
                with theirs:
                    process: Any
                    if fork:
                        # Copies of the parent's ends would hide its death from the workers, so the
                        # worker closes them.
                        copies = [ours, *(worker.pipe for worker in workers)]
                        process = multiprocessing.get_context("fork").Process(
                            target=_serve,
                            args=(theirs, ignored, copies, (target, values)),
                            daemon=True,
                            name=f"{name}-{number}",
                        )
                        process.start()
                    else:
                        shared = descriptors[number] if descriptors else ()
                        process = _interpreter(theirs.fileno(), shared, ignored)
                workers.append(WorkerProcess(process, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if not fork:
            for worker, values in zip(workers, arguments, strict=True):
                worker.send(sys.path)
                worker.send((target, values))
    except BaseException:
        stop_workers(workers, kill=True)
        raise
    return workers


def stop_workers(workers: list[WorkerProcess], *, kill: bool = False) -> None:
    """End the processes, with ``kill`` in the middle of their work, and clear the list."""
    for worker in workers:
        if not kill:
            with suppress(OSError):
                worker.pipe.send(None)
        worker.pipe.close()
    for worker in workers:
        worker.join(kill=kill)
    workers.clear()


def portable_error(error: Exception) -> Exception:
    """Return the error, or a WdsbenchError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WdsbenchError(f"{type(error).__name__}: {error}")
    return error


def _serve(
    pipe: Connection,
    ignored: Sequence[int],
    copies: Sequence[Connection] = (),
    task: tuple[Callable[..., None], tuple[Any, ...]] | None = None,
) -> None:
    """Run the target in the worker until it returns or the parent is gone."""
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ignored)
    for connection in copies:
        connection.close()
    channel = Channel(pipe)
    with suppress(ParentGoneError):
        target, arguments = channel.receive() if task is None else task
        target(channel, *arguments)
