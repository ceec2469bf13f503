"""Raw files read and prepared by N processes, handed over in the files' order.

A worker is given one file at a time, puts the bytes of its members into a buffer that both
processes see (``memfd_create``; an unlinked temporary file where there is none), and sends what is
left of the traces, which is small, over a pipe. Buffers are used again: new ones would cost a page
fault a page in both processes. At most N + 1 files are under way or waiting to be written,
and that bounds the memory. What goes wrong with a trace is raised where the trace would have come,
so that the first error is the same as with one process.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection, reduction
from pathlib import Path

import numpy as np

from wdsbench.errors import PackError, WdsbenchError
from wdsbench.pack.memory import keep_freed_memory
from wdsbench.pack.prepare import Prepared, Preparer
from wdsbench.shards.format.tar import Pieces

_BUFFER_BYTES = 1 << 18
#: What a worker runs; its end of the pipe is the one argument. Ctrl-C is the parent's to answer.
_PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
from wdsbench.pack.workers import work
work(pipe)
"""
#: How long an ended process gets to be gone.
_JOIN_SECONDS = 5.0


def prepared_files(
    files: Sequence[tuple[int, Path]], preparer: Preparer, workers: int
) -> Generator[tuple[int, Iterator[Prepared]], None, None]:
    """Yield (number, prepared traces) of each file, in order; consume one before the next, and
    close the generator, which ends the processes.

    Args:
        files: (number, path).
        preparer: What is done to each trace.
        workers: Processes; 1: this one.

    Raises:
        TraceError: And ScoreError, by the inner iterators, as from :meth:`Preparer.file`.
        PackError: A worker was killed.
    """
    workers = min(workers, len(files))
    if workers <= 1:
        for number, path in files:
            yield number, preparer.file(path)
        return
    team = _Team(files, preparer, workers)
    try:
        for place, (number, _) in enumerate(files):
            yield number, team.take(place)
    finally:
        team.close()


@dataclass(frozen=True)
class _FileResult:
    """What a worker sends of one file: traces without bytes, where their bytes lie, the error."""

    traces: list[Prepared]
    places: list[dict[str, tuple[int, int]]]
    size_bytes: int
    error: Exception | None
    buffer: int = -1


class _Team:
    """The processes, and which file each is at."""

    def __init__(self, files: Sequence[tuple[int, Path]], preparer: Preparer, workers: int) -> None:
        self._files = files
        self._results: dict[int, tuple[_FileResult, _Worker]] = {}
        self._next = 0
        self._taken = 0
        self._limit = workers + 1
        self._members: list[_Worker] = []
        options = replace(preparer.options, threads=max(1, preparer.options.threads // workers))
        content = pickle.dumps(replace(preparer, options=options))
        try:
            for _ in range(workers):
                self._members.append(_Worker(content))
        except BaseException:
            self.close()
            raise

    def take(self, place: int) -> Iterator[Prepared]:
        """Yield the traces of the file at ``place``, once it is there."""
        self._taken = place
        while place not in self._results:
            self._hand_out()
            self._receive()
        result, worker = self._results.pop(place)
        self._hand_out()
        content = worker.content(result)
        for trace, places in zip(result.traces, result.places, strict=True):
            members: dict[str, Pieces] = {
                name: [np.frombuffer(content, np.uint8, size, offset)]
                for name, (offset, size) in places.items()
            }
            yield replace(trace, members=members)
        worker.released.append(result.buffer)
        if result.error is not None:
            raise result.error

    def close(self) -> None:
        """End the processes and drop what they sent."""
        for worker in self._members:
            worker.close()
        self._results.clear()

    def _hand_out(self) -> None:
        for worker in self._members:
            if (
                worker.place is None
                and self._next < len(self._files)
                and self._next < self._taken + self._limit
            ):
                worker.give(self._next, self._files[self._next][1])
                self._next += 1

    def _receive(self) -> None:
        """Wait for a file, or for a process that has ended."""
        busy = {worker.pipe: worker for worker in self._members if worker.place is not None}
        for pipe in connection.wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            place, worker.place = worker.place, None
            assert place is not None
            try:
                self._results[place] = (worker.receive(), worker)
            except (EOFError, OSError) as error:
                raise worker.lost(self._files[place][1]) from error


class _Worker:
    """One process, from this side."""

    def __init__(self, content: bytes) -> None:
        self.pipe, theirs = multiprocessing.Pipe(duplex=True)
        self.place: int | None = None
        self.released: list[int] = []
        self._buffers: list[int] = []
        self._maps: list[mmap.mmap | bytes] = []
        # A fresh interpreter: a fork of a process with threads, or with CUDA, is not safe, and
        # multiprocessing's spawn would run the main script again.
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        finally:
            theirs.close()
        try:
            self.pipe.send(sys.path)
            self.pipe.send_bytes(content)
        except OSError as error:
            raise self.lost(Path("the first file")) from error

    def give(self, place: int, path: Path) -> None:
        """Let it read a file, and use the buffers again that are released."""
        self.place = place
        released, self.released = self.released, []
        try:
            self.pipe.send((path, released))
        except OSError as error:
            raise self.lost(path) from error

    def receive(self) -> _FileResult:
        """Return what it sends of the file."""
        result: _FileResult = self.pipe.recv()
        if result.buffer == len(self._buffers):
            self._buffers.append(reduction.recv_handle(self.pipe))
            self._maps.append(b"")
        return result

    def content(self, result: _FileResult) -> mmap.mmap | bytes:
        """Return the bytes of the traces, valid until their buffer is released."""
        number = result.buffer
        if len(self._maps[number]) < result.size_bytes:
            self._maps[number] = mmap.mmap(
                self._buffers[number], 0, mmap.MAP_SHARED, mmap.PROT_READ
            )
        return self._maps[number]

    def lost(self, path: Path) -> PackError:
        """Return the error that says how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_JOIN_SECONDS)
        code = self._process.returncode
        how = (
            f"was killed by signal {-code}"
            if code is not None and code < 0
            else (f"ended with code {code}")
        )
        return PackError(
            f"{path}: the process that read it {how}; if memory ran out, pack with fewer --workers"
        )

    def close(self) -> None:
        """End it."""
        self.pipe.close()
        self._process.terminate()
        try:
            self._process.wait(_JOIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._maps.clear()
        for descriptor in self._buffers:
            os.close(descriptor)
        self._buffers.clear()


def work(pipe: connection.Connection) -> None:
    """Read the files that are asked for until nobody asks any more: a worker process's life."""
    keep_freed_memory()
    preparer: Preparer = pickle.loads(pipe.recv_bytes())
    buffers: list[int] = []
    free: list[int] = []
    while True:
        try:
            path, released = pipe.recv()
            free += released
            made = not free
            if made:
                buffers.append(_shared_file())
                free.append(len(buffers) - 1)
            number = free.pop()
            result = _prepare_file(preparer, path, buffers[number])
            pipe.send(replace(result, buffer=number))
            if made:
                reduction.send_handle(pipe, buffers[number], os.getppid())
        except (EOFError, BrokenPipeError, ConnectionResetError):  # nobody asks any more
            return


def _prepare_file(preparer: Preparer, path: Path, descriptor: int) -> _FileResult:
    traces: list[Prepared] = []
    places: list[dict[str, tuple[int, int]]] = []
    failure: Exception | None = None
    offset = 0
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        # Not "w": what is there is written over, not given back.
        raw = io.FileIO(descriptor, "r+", closefd=False)
        with io.BufferedWriter(raw, _BUFFER_BYTES) as file:
            for prepared in preparer.file(path):
                found = {}
                for name, pieces in prepared.members.items():
                    first = offset
                    for piece in pieces:
                        view = memoryview(piece if isinstance(piece, bytes) else piece.data)
                        file.write(view)
                        offset += view.nbytes
                    found[name] = (first, offset - first)
                places.append(found)
                traces.append(replace(prepared, members={}))
                del prepared
    except WdsbenchError as error:
        failure = error
    except MemoryError:
        failure = PackError(f"{path}: out of memory; pack with fewer --workers")
    except OSError as error:
        failure = PackError(f"{path}: {error.strerror or error}; pack with fewer --workers")
    if failure is not None:
        failure.__cause__ = failure.__context__ = None  # may not travel
        failure.__traceback__ = None
    del traces[len(places) :]
    return _FileResult(traces, places, offset, failure)


def _shared_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("wdsbench-pack", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
