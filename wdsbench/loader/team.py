"""The worker processes of a loader, as the training process sees them.

They are started once and read all epochs. Every worker has its own slabs. A slab is free, being
filled, in transit, or leased to the consumer; it returns to the worker when the consumer has
dropped every view of it. If a lease would leave the worker without a slab, the batch is copied into
ordinary memory instead, so a consumer can keep any number of batches.

The workers take turns, so the order of batches does not depend on their speed.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import Any

import torch
from numpy.typing import NDArray

from wdsbench.errors import WdsbenchError
from wdsbench.loader.arguments import OpenSplit
from wdsbench.loader.batch_order import EpochOffset
from wdsbench.loader.worker import Failed, Filled, Finished, work
from wdsbench.processes import WorkerEndedError, WorkerProcess, start_workers, stop_workers
from wdsbench.slabs import Lease, SharedSlab
from wdsbench.slabs.transfer import is_done, pin, recorded_events
from wdsbench.stream import this_consumer

#: Slabs per worker: one being filled, two that wait here, one that the consumer holds.
SLABS_EACH = 4

#: Shared memory of all slabs of a team; larger batches are read in the training process.
SHARED_LIMIT_BYTES = 4 << 30


class WorkerTeam:
    """N worker processes and their slabs; serves one iterator at a time."""

    def __init__(self, workers: int, split: OpenSplit) -> None:
        """Start the processes; WdsbenchError if memory is short or a worker died."""
        slab_bytes = sum(split.batch_bytes)
        size = max(1, min(slab_bytes, SHARED_LIMIT_BYTES // (workers * SLABS_EACH)))
        self._slabs = [[SharedSlab(size) for _ in range(SLABS_EACH)] for _ in range(workers)]
        self._leased = [0] * workers
        self._returned: deque[tuple[int, int, list[torch.cuda.Event]]] = deque()
        self._request = 0
        # A request that the workers have begun ahead of the iterator that will read it.
        self._begun: tuple[int, EpochOffset] | None = None
        self._pid = os.getpid()
        here = this_consumer()
        layout = type(split.layout)(replace(split.layout.plan, threads=0))
        share = replace(split, layout=layout)
        files = [tuple(slab.descriptor for slab in slabs) for slabs in self._slabs]
        try:
            self._workers = start_workers(
                work,
                [
                    (replace(here, worker=worker, workers=workers), share, size, each)
                    for worker, each in enumerate(files)
                ],
                fork=multiprocessing.get_context().get_start_method() == "fork",
                descriptors=files,
            )
        except WorkerEndedError as error:
            raise WdsbenchError(f"a worker process {error} while it started") from error
        # At exit multiprocessing sends its children SIGTERM, which they may ignore, and waits for
        # them. A finalizer with a priority runs before that.
        self._finalizer = Finalize(self, _stop, (self._workers, self._pid), exitpriority=10)
        for slabs in self._slabs:
            for slab in slabs:
                slab.close()
                pin(slab.memory)

    def close(self) -> None:
        """End the processes."""
        self._finalizer()

    def epoch(
        self, epoch: int, start: EpochOffset, turns: list[int]
    ) -> Iterator[tuple[int, Filled]]:
        """Yield (worker, batch); every batch's slab must be leased or given back.

        ``turns`` are the workers in the order of their first turns. At the end of the epoch the
        workers fill their slabs with the next one, which is discarded if another one is requested.
        """
        if self._begun != (epoch, start):
            self._begin(epoch, start)
        self._begun = None
        reading = deque(turns)
        while reading:
            worker = reading.popleft()
            message = self._receive(worker)
            if isinstance(message, Filled):
                reading.append(worker)
                yield worker, message
        self._begin(epoch + 1, EpochOffset(0, len(self._workers)))

    def lease(self, worker: int, slab: int) -> Lease | None:
        """Return a lease of a filled slab; None if the worker would have no slab left."""
        if self._leased[worker] + 1 >= SLABS_EACH:
            return None
        self._leased[worker] += 1
        returned = self._returned  # not self: a kept batch must not keep the processes
        return Lease(lambda: returned.append((worker, slab, recorded_events())))

    def memory(self, worker: int, slab: int) -> NDArray[Any]:
        """Return a slab's bytes."""
        return self._slabs[worker][slab].memory

    def give_back(self, worker: int, slab: int) -> None:
        """Return a slab to its worker at once."""
        self._send(worker, ("free", slab))

    @property
    def is_ours(self) -> bool:
        """True if this process started the workers; a forked child must not use them."""
        return self._pid == os.getpid()

    def _begin(self, epoch: int, start: EpochOffset) -> None:
        self._request += 1
        for worker in range(len(self._workers)):
            self._send(worker, ("epoch", self._request, epoch, start))
        self._begun = epoch, start

    def _return_slabs(self) -> None:
        """Return the slabs that the consumer has dropped to the workers."""
        for _ in range(len(self._returned)):
            worker, slab, events = self._returned.popleft()
            if all(map(is_done, events)):
                self._leased[worker] -= 1
                self.give_back(worker, slab)
            else:
                self._returned.append((worker, slab, events))

    def _receive(self, worker: int) -> Filled | Finished:
        """Return the worker's next message of this request."""
        while True:
            self._return_slabs()
            try:
                message = self._workers[worker].receive()
            except WorkerEndedError as error:
                raise _death(worker, error) from None
            if message.request != self._request:
                if isinstance(message, Filled) and message.slab is not None:
                    self.give_back(worker, message.slab)
            elif isinstance(message, Failed):
                raise message.error from WdsbenchError(message.text)
            else:
                assert isinstance(message, (Filled, Finished))
                return message

    def _send(self, worker: int, message: tuple[Any, ...]) -> None:
        try:
            self._workers[worker].send(message)
        except WorkerEndedError as error:
            raise _death(worker, error) from None


def _death(worker: int, error: WorkerEndedError) -> WdsbenchError:
    hint = "; out of memory is the usual cause" if error.exit_code == -9 else ""
    return WdsbenchError(f"worker process wdsbench-worker-{worker} {error}{hint}")


def _stop(workers: list[WorkerProcess], pid: int) -> None:
    """End the processes; a forked child leaves its parent's workers alone."""
    if os.getpid() == pid:
        stop_workers(workers)
