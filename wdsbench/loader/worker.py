"""The worker process: reads its share of each epoch into shared slabs and sends their numbers.

The training process sends ``("epoch", request, epoch, start)``, which replaces the request before
it, and ``("free", slab)``. The worker sends :class:`Filled`, :class:`Finished` and :class:`Failed`,
each with the number of its request. It decodes as far ahead as it has free slabs.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wdsbench.loader.arguments import OpenSplit
from wdsbench.loader.decode import BatchDecoder
from wdsbench.loader.stats import disk_bytes
from wdsbench.processes import Channel, ParentGoneError, portable_error
from wdsbench.slabs import SharedSlab, SlabCursor, SlabFullError
from wdsbench.stream.assign import Consumer, set_consumer


class Filled(NamedTuple):
    """A decoded batch. A tuple with bytes is pickled and restored in a quarter of the time."""

    request: int
    #: int64 ``[B]``: rows of the index.
    row_bytes: bytes
    #: Number of the slab; None if the batch is larger than a slab and not decoded.
    slab: int | None
    #: As ``fields`` and ``scales``: see :class:`BatchTensors`.
    edge_counts: NDArray[np.int64] | None = None
    fields: dict[str, list[Any]] | None = None
    scales: NDArray[np.float32] | None = None
    decode_seconds: float = 0.0
    #: End of the decode, on the clock of ``time.perf_counter``.
    done_at: float = 0.0
    #: Payload bytes of states or images.
    bytes_read: int = 0
    #: Bytes fetched from disks since the worker started.
    disk_bytes: int = 0

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows, read-only."""
        return np.frombuffer(self.row_bytes, np.int64)


class Finished(NamedTuple):
    """The worker's share of a request is read."""

    request: int


class Failed(NamedTuple):
    """The worker's share of a request ended with an error; ``text`` is its traceback."""

    request: int
    error: Exception
    text: str


def work(
    channel: Channel,
    consumer: Consumer,
    split: OpenSplit,
    slab_bytes: int,
    descriptors: tuple[int, ...],
) -> None:
    """Serve requests until the training process ends the worker, or is gone.

    ``descriptors`` are the open files of the worker's slabs.
    """
    set_consumer(consumer)
    slabs = [SharedSlab(slab_bytes, descriptor) for descriptor in descriptors]
    _Worker(channel, split, slabs).serve()


class _Worker:
    def __init__(self, channel: Channel, split: OpenSplit, slabs: list[SharedSlab]) -> None:
        self._channel = channel
        self._order = split.order
        self._slabs = slabs
        files = split.open_files()
        self._ahead = split.read_ahead(files)
        self._decoder = BatchDecoder(split.layout, files)
        self._free = deque(range(len(slabs)))
        self._request = -1
        self._lists: Iterator[list[int]] | None = None

    def serve(self) -> None:
        while True:
            idle = self._lists is None or not self._free
            if not idle and not self._channel.waiting():
                self._read_one()
                continue
            message = self._channel.receive()
            if message is None:
                return
            if message[0] == "free":
                self._free.append(message[1])
            else:
                _, self._request, epoch, start = message
                if self._ahead is not None:
                    self._ahead.clear()
                self._lists = self._order.row_lists(epoch, self._ahead, start)

    def _read_one(self) -> None:
        assert self._lists is not None
        try:
            row_list = next(self._lists, None)
            if row_list is None:
                self._lists = None
                self._channel.send(Finished(self._request))
            else:
                self._channel.send(self._filled(row_list))
        except ParentGoneError:
            raise
        except Exception as error:
            self._lists = None
            text = traceback.format_exc()
            self._channel.send(Failed(self._request, portable_error(error), text))

    def _filled(self, row_list: list[int]) -> Filled:
        slab = self._free.popleft()
        before = self._decoder.bytes_read
        try:
            cursor = SlabCursor(self._slabs[slab].memory)
            pending = self._decoder.start(row_list, cursor)
            tensors = self._decoder.tensors(pending)
        except SlabFullError:
            self._free.append(slab)
            rows = np.array(row_list, np.int64)
            return Filled(self._request, rows.tobytes(), None, done_at=time.perf_counter())
        except Exception:
            self._free.append(slab)
            raise
        return Filled(
            self._request,
            tensors.rows.tobytes(),
            slab,
            tensors.edge_counts,
            tensors.fields or None,
            None if tensors.scales is None else tensors.scales.numpy(),
            pending.busy_seconds,
            time.perf_counter(),
            self._decoder.bytes_read - before,
            disk_bytes(),
        )
