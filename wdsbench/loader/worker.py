"""A worker process: reads its share of each epoch into shared slabs and sends their numbers.

The training process sends ``("epoch", run, epoch, start)``, which abandons what the worker is
doing, ``("free", slab)`` and ``("quit",)``. The worker sends :class:`Filled`, :class:`Finished` and
:class:`Failed`, each with the run they belong to. It decodes as far ahead as it has free slabs.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import WdsbenchError
from wdsbench.loader.decode import BatchDecoder
from wdsbench.loader.plan import DecodePlan
from wdsbench.loader.reading import Reading
from wdsbench.loader.stats import disk_bytes
from wdsbench.slabs import SharedSlab, SlabCursor, SlabFullError
from wdsbench.stream.assign import Consumer, appoint
from wdsbench.stream.files import open_shards

#: How often a worker that waits looks whether its training process still lives.
ORPHAN_SECONDS = 2.0


class Filled(NamedTuple):
    """A batch stands in a slab. A tuple with bytes: pickled and back in a quarter of the time.

    Attributes:
        run: The run it belongs to.
        row_bytes: int64 ``[B]``: rows of the index.
        slab: Its number; None where the batch is larger than a slab: read it yourself.
        edge_counts: int64 ``[B * layers]`` (layout graph).
        metas: B ``meta.json`` dicts, where a field needs them.
        sketches: B arrays, where a field needs them.
        scales: float32 ``[B, layers]`` yet to be applied, or None.
        decode_seconds: Time of the worker's decode.
        done_at: When it was done, on the clock of ``time.perf_counter``.
        bytes_read: Payload bytes of hidden states.
        disk_bytes: Fetched from disks since the worker began.
    """

    run: int
    row_bytes: bytes
    slab: int | None
    edge_counts: NDArray[np.int64] | None = None
    metas: list[dict[str, Any]] | None = None
    sketches: list[NDArray[np.float32]] | None = None
    scales: NDArray[np.float32] | None = None
    decode_seconds: float = 0.0
    done_at: float = 0.0
    bytes_read: int = 0
    disk_bytes: int = 0

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows, read-only."""
        return np.frombuffer(self.row_bytes, np.int64)


class Finished(NamedTuple):
    """The worker's share of a run is read."""

    run: int


class Failed(NamedTuple):
    """The worker's share of a run ended with an error; ``text`` is its traceback."""

    run: int
    error: Exception
    text: str


@dataclass(frozen=True)
class WorkerTask:
    """What a worker process is given at its start.

    Attributes:
        consumer: Its place among all readers.
        reading: Which samples.
        plan: How they are decoded.
        access: How shards are read.
    """

    consumer: Consumer
    reading: Reading
    plan: DecodePlan
    access: str


def work(
    task: WorkerTask | None,
    slabs: list[SharedSlab],
    orders: Connection,
    foreign: list[Connection],
    ignored: list[signal.Signals],
) -> None:
    """Serve until told to quit, or until the training process is gone.

    Args:
        task: What to do; None: it comes as the first order (a process that was not forked is
            started with little, for a start that fails midway through much may hang).
        slabs: The worker's own slabs.
        orders: From the training process, and back to it.
        foreign: The training process's ends of pipes that a fork has copied; kept open here they
            would hide its death from other workers.
        ignored: Signals that are the training process's to handle, such as that of Ctrl-C.
    """
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ignored)  # blocked while this process was started
    for connection in foreign:
        connection.close()
    with suppress(_ParentGoneError):  # there is nobody to tell
        channel = _Channel(orders)
        if task is None:
            task = channel.receive()
        assert isinstance(task, WorkerTask)
        appoint(task.consumer)
        _Worker(task, slabs, channel).serve()


class _ParentGoneError(Exception):
    """The training process has ended."""


class _Channel:
    """The pipe to the training process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parent = os.getppid()
        self._poll = select.poll()  # kept: Connection.poll makes a selector a call, 20 us each
        self._poll.register(connection.fileno(), select.POLLIN)

    def waiting(self) -> bool:
        """Return whether there is something to receive."""
        return bool(self._poll.poll(0))

    def receive(self) -> Any:
        """Return what comes next.

        Raises:
            _ParentGoneError: Nothing will.
        """
        while not self._poll.poll(ORPHAN_SECONDS * 1e3):
            if os.getppid() != self._parent:
                raise _ParentGoneError
        try:
            return self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise _ParentGoneError from error

    def send(self, message: Filled | Finished | Failed) -> None:
        """Send a message.

        Raises:
            _ParentGoneError: There is nobody to take it.
        """
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _ParentGoneError from error


class _Worker:
    def __init__(self, task: WorkerTask, slabs: list[SharedSlab], channel: _Channel) -> None:
        index = task.reading.index
        self._task = task
        self._slabs = slabs
        self._channel = channel
        self._files = open_shards(index, access=task.access)
        self._ahead = None if task.access == "sparse" else _core.ReadAhead(self._files)
        self._decoder = BatchDecoder(index, task.plan, self._files)
        self._free = deque(range(len(slabs)))
        self._run = -1
        self._lists: Iterator[list[int]] | None = None

    def serve(self) -> None:
        while True:
            idle = self._lists is None or not self._free
            if idle or self._channel.waiting():
                order = self._channel.receive()
                if order[0] == "quit":
                    return
                self._obey(order)
            else:
                self._read_one()

    def _obey(self, order: tuple[Any, ...]) -> None:
        if order[0] == "free":
            self._free.append(order[1])
            return
        _, self._run, epoch, start = order
        if self._ahead is not None:
            self._ahead.clear()
        self._lists = self._task.reading.row_lists(epoch, self._ahead, start)

    def _read_one(self) -> None:
        assert self._lists is not None
        try:
            row_list = next(self._lists, None)
            if row_list is None:
                self._lists = None
                self._channel.send(Finished(self._run))
            else:
                self._fill(row_list)
        except _ParentGoneError:
            raise
        except Exception as error:
            self._lists = None
            self._channel.send(Failed(self._run, _portable(error), traceback.format_exc()))

    def _fill(self, row_list: list[int]) -> None:
        slab = self._free.popleft()
        before = self._decoder.bytes_read
        try:
            cursor = SlabCursor(self._slabs[slab].memory)
            pending = self._decoder.start(row_list, cursor)
            tensors = self._decoder.tensors(pending)
        except SlabFullError:
            self._free.append(slab)
            now = time.perf_counter()
            self._channel.send(
                Filled(self._run, np.array(row_list, np.int64).tobytes(), None, done_at=now)
            )
            return
        except Exception:
            self._free.append(slab)
            raise
        self._channel.send(
            Filled(
                self._run,
                pending.rows.tobytes(),
                slab,
                tensors.edge_counts,
                tensors.metas,
                tensors.sketches,
                None if tensors.scales is None else tensors.scales.numpy(),
                0.0 if pending.run is None else pending.run.busy_seconds,
                time.perf_counter(),
                self._decoder.bytes_read - before,
                disk_bytes(),
            )
        )


def _portable(error: Exception) -> Exception:
    """Return the error as it is where it survives pickling, else its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WdsbenchError(f"{type(error).__name__}: {error}")
    return error
