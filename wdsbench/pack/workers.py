"""Reads and prepares files in N processes and yields their samples in the files' order.

A worker receives one file (or a part of one) at a time, writes the bytes of its members into a
shared buffer (``memfd_create``, or an unlinked temporary file), and sends the small rest of the
samples over a pipe. Buffers are reused, since a new one costs a page fault for each page in both
processes. At most N + 1 files are being read or wait to be written, which bounds the memory. An
error is raised in place of its sample, so that the first error is the same as with one process.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from wdsbench.errors import PackError, WdsbenchError
from wdsbench.pack.prepare import freed_memory_kept
from wdsbench.processes import (
    Channel,
    WorkerEndedError,
    WorkerProcess,
    portable_error,
    start_workers,
    stop_workers,
)
from wdsbench.shards.format.tar import Pieces

_BUFFER_BYTES = 1 << 18

#: A file, or a part of one; its text is the file's path.
File = TypeVar("File")
#: A dataclass with ``members``: their content by name.
Sample = TypeVar("Sample", bound=Any)
FileIn = TypeVar("FileIn", contravariant=True)
SampleOut = TypeVar("SampleOut", covariant=True)


class FilePreparer(Protocol[FileIn, SampleOut]):
    """Prepares the samples of a file; is pickled once per worker."""

    def file(self, path: FileIn) -> Iterator[SampleOut]:
        """Yield the prepared samples of one file, in order."""

    def for_workers(self, workers: int) -> FilePreparer[FileIn, SampleOut]:
        """Return the preparer of one of several processes, which share the cores."""


def prepared_files(
    files: Sequence[tuple[int, File]], preparer: FilePreparer[File, Sample], workers: int
) -> Generator[tuple[int, Iterator[Sample]], None, None]:
    """Yield number and prepared samples of each file, in order; with one worker, read here.

    Consume the samples of one file before the next; closing the generator ends the processes. The
    inner iterators raise the WdsbenchError of their file; PackError: a worker was killed.
    """
    workers = min(workers, len(files))
    if workers <= 1:
        for number, path in files:
            yield number, preparer.file(path)
        return
    pool = _Workers(files, preparer, workers)
    try:
        for place, (number, _) in enumerate(files):
            yield number, pool.samples_of(place)
    finally:
        pool.close()


@dataclass(frozen=True)
class _FileResult:
    """Result of one file: samples without bytes, places of their bytes in the buffer, the error."""

    samples: list[Any]
    places: list[dict[str, tuple[int, int]]]
    size_bytes: int
    error: Exception | None
    buffer: int = -1


class _Workers(Generic[File, Sample]):
    """The processes and the files they read."""

    def __init__(
        self,
        files: Sequence[tuple[int, File]],
        preparer: FilePreparer[File, Sample],
        workers: int,
    ) -> None:
        self._files = files
        self._results: dict[int, tuple[_FileResult, _Worker]] = {}
        self._next = 0
        self._current = 0
        self._limit = workers + 1
        content = pickle.dumps(preparer.for_workers(workers))
        self._processes: list[WorkerProcess] = []
        try:
            self._processes = start_workers(
                work, [(content,)] * workers, fork=False, name="wdsbench-pack"
            )
        except WorkerEndedError as error:
            raise PackError(f"a process that reads files {_ended(error)}") from error
        self._members = [_Worker(process) for process in self._processes]

    def samples_of(self, place: int) -> Iterator[Sample]:
        """Yield the samples of the file at ``place`` once a worker has read it."""
        self._current = place
        while place not in self._results:
            self._assign()
            self._receive()
        result, worker = self._results.pop(place)
        self._assign()
        content = worker.content(result)
        for sample, places in zip(result.samples, result.places, strict=True):
            members: dict[str, Pieces] = {
                name: [np.frombuffer(content, np.uint8, size, offset)]
                for name, (offset, size) in places.items()
            }
            yield replace(sample, members=members)
        worker.released.append(result.buffer)
        if result.error is not None:
            raise result.error

    def close(self) -> None:
        """End the processes and discard their results."""
        stop_workers(self._processes, kill=True)
        for worker in self._members:
            worker.free()
        self._results.clear()

    def _assign(self) -> None:
        for worker in self._members:
            if (
                worker.place is None
                and self._next < len(self._files)
                and self._next < self._current + self._limit
            ):
                worker.send(self._next, self._files[self._next][1])
                self._next += 1

    def _receive(self) -> None:
        """Wait for a result or the end of a process."""
        busy = {worker.process.pipe: worker for worker in self._members if worker.place is not None}
        for pipe in connection.wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            place, worker.place = worker.place, None
            assert place is not None
            try:
                self._results[place] = (worker.receive(), worker)
            except WorkerEndedError as error:
                raise _lost(self._files[place][1], error) from error


@dataclass
class _Worker:
    """One process, as seen by the parent: the file that it reads, and buffers it can reuse."""

    process: WorkerProcess
    place: int | None = None
    released: list[int] = field(default_factory=list)
    _buffers: list[int] = field(default_factory=list)
    _maps: list[mmap.mmap | bytes] = field(default_factory=list)

    def send(self, place: int, path: object) -> None:
        """Send a file to read, and the buffers that were released."""
        self.place = place
        released, self.released = self.released, []
        try:
            self.process.send((path, released))
        except WorkerEndedError as error:
            raise _lost(path, error) from error

    def receive(self) -> _FileResult:
        """Return the result of the file."""
        result: _FileResult = self.process.receive()
        if result.buffer == len(self._buffers):
            self._buffers.append(self.process.receive_descriptor())
            self._maps.append(b"")
        return result

    def content(self, result: _FileResult) -> mmap.mmap | bytes:
        """Return the bytes of the samples, valid until their buffer is released."""
        number = result.buffer
        if len(self._maps[number]) < result.size_bytes:
            self._maps[number] = mmap.mmap(
                self._buffers[number], 0, mmap.MAP_SHARED, mmap.PROT_READ
            )
        return self._maps[number]

    def free(self) -> None:
        """Unmap and close the buffers."""
        self._maps.clear()
        for descriptor in self._buffers:
            os.close(descriptor)
        self._buffers.clear()


def _lost(path: object, error: WorkerEndedError) -> PackError:
    return PackError(f"{path}: the process that read it {_ended(error)}")


def _ended(error: WorkerEndedError) -> str:
    return f"{error}; if memory ran out, pack with fewer --workers"


def work(channel: Channel, content: bytes) -> None:
    """Read files until the parent is gone: the main loop of a worker process."""
    preparer: FilePreparer[Any, Any] = pickle.loads(content)
    buffers: list[int] = []
    free: list[int] = []
    with freed_memory_kept():
        while (message := channel.receive()) is not None:
            path, released = message
            free += released
            made = None
            if not free:
                made = _shared_file()
                buffers.append(made)
                free.append(len(buffers) - 1)
            number = free.pop()
            result = _prepare_file(preparer, path, buffers[number])
            channel.send(replace(result, buffer=number), made)


def _prepare_file(preparer: FilePreparer[File, Sample], path: File, descriptor: int) -> _FileResult:
    samples: list[Sample] = []
    places: list[dict[str, tuple[int, int]]] = []
    failure: Exception | None = None
    offset = 0
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        # Not "w": pages are overwritten, not freed.
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
                samples.append(replace(prepared, members={}))
                del prepared
    except WdsbenchError as error:
        failure = error
    except MemoryError:
        failure = PackError(f"{path}: out of memory; pack with fewer --workers")
    except OSError as error:
        failure = PackError(f"{path}: {error.strerror or error}; pack with fewer --workers")
    del samples[len(places) :]
    portable = None if failure is None else portable_error(failure)
    return _FileResult(samples, places, offset, portable)


def _shared_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("wdsbench-pack", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
