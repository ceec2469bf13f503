"""The training process's side of worker processes: started once, reading epoch after epoch.

Every worker has slabs of its own. A slab is with the worker (free or being filled), on its way
here, or leased to the consumer; it is given back to the worker when the consumer has dropped every
view of it. Before a lease would leave the worker with no slab at all, the batch is copied into
ordinary memory instead: a consumer may hold on to any number of batches, and nobody ever waits for
a slab that does not come back.

Batches come from the workers in turn, so the order does not depend on which is faster.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.errors import WdsbenchError
from wdsbench.loader.plan import DecodePlan
from wdsbench.loader.reading import Reading
from wdsbench.loader.steps import Start
from wdsbench.loader.worker import Failed, Filled, Finished, WorkerTask, work
from wdsbench.slabs import Lease, SharedSlab
from wdsbench.slabs.transfer import is_done, pin, recorded_events
from wdsbench.stream import this_consumer

#: Slabs of each worker: one that it fills, two that wait here, one that the consumer holds.
SLABS_EACH = 4

#: Shared memory that all slabs of a team may take; larger batches are read in this process.
SHARED_LIMIT_BYTES = 4 << 30

#: How long a worker that was told to quit may take before it is killed.
QUIT_SECONDS = 5.0

GUARD = (
    "worker processes started by spawn or forkserver import the main script again: put what it"
    " does behind `if __name__ == '__main__':`"
)


@dataclass
class _Member:
    """One worker as the training process sees it."""

    process: BaseProcess
    connection: Connection
    slabs: list[SharedSlab]
    leased: int = 0

    def __post_init__(self) -> None:
        # Kept: multiprocessing's own wait() and poll() make a selector a call, 20 us each.
        self._poll = select.poll()
        self._poll.register(self.connection.fileno(), select.POLLIN)
        self._poll.register(self.process.sentinel, select.POLLIN)

    def wait(self) -> None:
        """Return when there is a message.

        Raises:
            EOFError: The process has ended, and all that it sent is read.
        """
        ready = [descriptor for descriptor, _ in self._poll.poll()]
        if self.connection.fileno() not in ready:
            raise EOFError


class WorkerTeam:
    """N worker processes and their slabs; serves one run (an epoch of one iterator) at a time."""

    def __init__(
        self, workers: int, reading: Reading, plan: DecodePlan, access: str, slab_bytes: int
    ) -> None:
        """Start the processes.

        Raises:
            WdsbenchError: Memory for the slabs is not there.
            RuntimeError: This process is itself being started by ``spawn``: the main script has no
                main guard.
        """
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(GUARD)
        context = multiprocessing.get_context()
        here = this_consumer()
        size = max(1, min(slab_bytes, SHARED_LIMIT_BYTES // (workers * SLABS_EACH)))
        self._members: list[_Member] = []
        self._returned: deque[tuple[int, int, list[torch.cuda.Event]]] = deque()
        self._run = 0
        # What the workers have begun and nobody reads yet.
        self._begun: tuple[int, Start] | None = None
        self._pid = os.getpid()
        # With a priority it runs before multiprocessing, at exit, sends its children SIGTERM and
        # waits for them: in vain where they ignore it.
        self._finalizer = Finalize(self, _stop, (self._members, self._pid), exitpriority=10)
        tasks: list[WorkerTask] = []
        for worker in range(workers):
            slabs = [SharedSlab(size) for _ in range(SLABS_EACH)]
            consumer = replace(here, worker=worker, workers=workers)
            task = WorkerTask(consumer, reading, replace(plan, threads=0), access)
            self._members.append(self._start(context, task, slabs))
            tasks.append(task)
        if context.get_start_method() != "fork":
            for member, task in zip(self._members, tasks, strict=True):
                self._send(member, task)
        for member in self._members:
            for slab in member.slabs:
                slab.close()
                pin(slab.memory)

    def close(self) -> None:
        """End the processes."""
        self._finalizer()

    def run(self, epoch: int, start: Start, order: list[int]) -> Iterator[tuple[int, Filled]]:
        """Yield (worker, batch) of an epoch; every batch's slab must be leased or given back.

        Args:
            epoch: Which.
            start: Where in it.
            order: Workers in the order of their first turns.

        When it is over the workers begin with the next one, as far as their slabs reach; it is
        thrown away where another one is asked for.

        Raises:
            WdsbenchError: What a worker met, or that it died.
        """
        if self._begun != (epoch, start):
            self._begin(epoch, start)
        self._begun = None
        reading = deque(order)
        while reading:
            worker = reading.popleft()
            message = self._receive(worker)
            if isinstance(message, Filled):
                reading.append(worker)
                yield worker, message
        self._begin(epoch + 1, Start(0, len(self._members)))

    def _begin(self, epoch: int, start: Start) -> None:
        """Let the workers read ``epoch`` from ``start`` on."""
        self._run += 1
        for member in self._members:
            self._send(member, ("epoch", self._run, epoch, start))
        self._begun = epoch, start

    def lease(self, worker: int, slab: int) -> Lease | None:
        """Return a lease of a filled slab to the consumer; None where the worker needs it back."""
        member = self._members[worker]
        if member.leased + 1 >= len(member.slabs):
            return None
        member.leased += 1
        returned = self._returned  # and not self: a batch that is kept keeps no processes
        return Lease(lambda: returned.append((worker, slab, recorded_events())))

    def memory(self, worker: int, slab: int) -> NDArray[np.uint8]:
        """Return a slab's bytes."""
        return self._members[worker].slabs[slab].memory

    def give_back(self, worker: int, slab: int) -> None:
        """Return a slab to its worker at once."""
        self._send(self._members[worker], ("free", slab))

    @property
    def is_ours(self) -> bool:
        """Whether this process started the workers; a forked child leaves them to its parent."""
        return self._pid == os.getpid()

    def _start(self, context: BaseContext, task: WorkerTask, slabs: list[SharedSlab]) -> _Member:
        ours, theirs = context.Pipe()
        forks = context.get_start_method() == "fork"
        foreign = [ours, *(member.connection for member in self._members)] if forks else []
        # Who handles SIGTERM itself (training saves its state first) needs its workers until then,
        # and launchers send it to all processes of a job.
        ignored = [signal.SIGINT]
        if callable(signal.getsignal(signal.SIGTERM)):
            ignored.append(signal.SIGTERM)
        process = context.Process(  # type: ignore[attr-defined]
            target=work,
            args=(task if forks else None, slabs, theirs, foreign, ignored),
            daemon=True,
            name=f"wdsbench-worker-{task.consumer.worker}",
        )
        # Blocked until the worker ignores them: before that it would act as this process does.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ignored)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return _Member(process, ours, slabs)

    def _take_back(self) -> None:
        """Return what the consumer has dropped to the workers."""
        for _ in range(len(self._returned)):
            worker, slab, events = self._returned.popleft()
            if all(map(is_done, events)):
                self._members[worker].leased -= 1
                self.give_back(worker, slab)
            else:
                self._returned.append((worker, slab, events))

    def _receive(self, worker: int) -> Filled | Finished:
        """Return the worker's next message of this run."""
        member = self._members[worker]
        while True:
            self._take_back()
            try:
                member.wait()
                message = member.connection.recv()
            except (EOFError, ConnectionResetError):
                raise self._death(member) from None
            if message.run != self._run:
                if isinstance(message, Filled) and message.slab is not None:
                    self.give_back(worker, message.slab)
            elif isinstance(message, Failed):
                raise message.error from WdsbenchError(message.text)
            else:
                assert isinstance(message, (Filled, Finished))
                return message

    def _send(self, member: _Member, order: tuple[Any, ...] | WorkerTask) -> None:
        try:
            member.connection.send(order)
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(member) from None

    def _death(self, member: _Member) -> WdsbenchError:
        member.process.join(QUIT_SECONDS)
        code = member.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exit {code}"
        hint = "; out of memory is the usual cause" if code == -9 else ""
        if multiprocessing.get_start_method() != "fork" and self._run <= 1 and code == 1:
            hint = f"; {GUARD}"
        return WdsbenchError(f"worker process {member.process.name} ended ({how}){hint}")


def _stop(members: list[_Member], pid: int) -> None:
    """End the processes: ask, wait, kill. A forked child leaves its parent's workers alone."""
    if os.getpid() != pid:
        return
    for member in members:
        with suppress(OSError):
            member.connection.send(("quit",))
        member.connection.close()
    for member in members:
        member.process.join(QUIT_SECONDS)
        if member.process.exitcode is None:
            member.process.kill()
            member.process.join()
    members.clear()
