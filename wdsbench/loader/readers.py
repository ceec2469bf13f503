"""Readers of epochs: in the training process, or in worker processes that fill shared slabs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator

import torch

from wdsbench.errors import ShardError
from wdsbench.loader.arguments import OpenSplit
from wdsbench.loader.batch_order import EpochOffset, turns_after
from wdsbench.loader.decode import BatchDecoder, PendingBatch
from wdsbench.loader.layouts.layout import BatchTensors
from wdsbench.loader.stats import LoaderStats
from wdsbench.loader.team import WorkerTeam
from wdsbench.loader.worker import Filled
from wdsbench.records import Batch
from wdsbench.slabs import OrdinaryMemory, PoolMemory, SlabCursor, SlabPool

#: Batches that are decoded, or wait for it, while the consumer has another.
BATCHES_AHEAD = 2


class InProcessReader:
    """Reads epochs in this process: C++ threads decode a few batches ahead of the consumer."""

    def __init__(self, split: OpenSplit) -> None:
        self._split = split
        self._files = split.open_files()
        states, edges = split.batch_bytes
        self._pools = SlabPool(states), SlabPool(edges), SlabPool(edges)

    def epoch(self, stats: LoaderStats, start: EpochOffset) -> Generator[Batch]:
        """Yield the batches of epoch ``stats.epoch``."""
        split = self._split
        ahead = split.read_ahead(self._files)
        decoder = BatchDecoder(split.layout, self._files)
        pending: deque[tuple[PendingBatch, PoolMemory]] = deque()
        try:
            for rows in split.order.row_lists(stats.epoch, ahead, start):
                memory = PoolMemory(self._pools)
                pending.append((decoder.start(rows, memory), memory))
                if len(pending) == BATCHES_AHEAD:
                    yield _finish(decoder, *pending.popleft(), stats)
            while pending:
                yield _finish(decoder, *pending.popleft(), stats)
        except ShardError:
            # Open again: a shard may have been repaired by a new file of the same name.
            self._files = split.open_files()
            raise

    def close(self) -> None:
        """Do nothing: threads end with their batches."""


def _finish(
    decoder: BatchDecoder, pending: PendingBatch, memory: PoolMemory, stats: LoaderStats
) -> Batch:
    requested = time.perf_counter()
    batch = decoder.assemble(decoder.tensors(pending))
    if pending.decode is not None:
        stats.decode_seconds += pending.decode.busy_seconds
        stats.loader_waited_seconds += max(0.0, requested - pending.decode.done_at)
    stats.bytes_read = decoder.bytes_read
    stats.copied_batches += memory.ordinary
    return batch


class WorkerReader:
    """Reads epochs with ``num_workers`` worker processes, which it starts when it needs them."""

    def __init__(self, split: OpenSplit, workers: int) -> None:
        self._split = split
        self._workers = workers
        self._files = split.open_files()
        self._team: WorkerTeam | None = None

    def epoch(self, stats: LoaderStats, start: EpochOffset) -> Generator[Batch]:
        """Yield the batches of epoch ``stats.epoch``."""
        # A second iterator in parallel with another one starts workers of its own.
        team, self._team = self._team, None
        if team is None or not team.is_ours:
            team = WorkerTeam(self._workers, self._split)
        decoder = BatchDecoder(self._split.layout, self._files)
        on_disk: dict[int, int] = {}
        try:
            for worker, filled in team.epoch(stats.epoch, start, self._turns(start)):
                requested = time.perf_counter()
                batch = _received(team, worker, filled, decoder, stats)
                stats.decode_seconds += filled.decode_seconds
                stats.loader_waited_seconds += max(0.0, requested - filled.done_at)
                stats.bytes_read += filled.bytes_read
                on_disk[worker] = filled.disk_bytes
                stats.disk_bytes = sum(on_disk.values())
                yield batch
                del batch
        except GeneratorExit:
            self._keep(team)
            raise
        except BaseException:
            team.close()
            raise
        self._keep(team)

    def close(self) -> None:
        """End the worker processes."""
        team, self._team = self._team, None
        if team is not None:
            team.close()

    def _turns(self, start: EpochOffset) -> list[int]:
        """Return the workers in the order of their first turns."""
        if start.workers != self._workers:  # the remaining batches are assigned round-robin
            return list(range(self._workers))
        return turns_after(self._split.order.steps(self._workers), start.batches)[1]

    def _keep(self, team: WorkerTeam) -> None:
        """Keep one team for the next epoch."""
        if self._team is None or not self._team.is_ours:
            self._team = team
        else:
            team.close()


def _received(
    team: WorkerTeam, worker: int, filled: Filled, decoder: BatchDecoder, stats: LoaderStats
) -> Batch:
    """Return the batch in a slab: in place, or copied if the worker needs the slab."""
    if filled.slab is None:
        stats.copied_batches += 1
        before = decoder.bytes_read
        pending = decoder.start(filled.rows.tolist(), OrdinaryMemory())
        batch = decoder.assemble(decoder.tensors(pending))
        stats.bytes_read += decoder.bytes_read - before
        stats.decode_seconds += pending.busy_seconds
        return batch
    lease = team.lease(worker, filled.slab)
    cursor = SlabCursor(team.memory(worker, filled.slab), lease)
    tensors = decoder.placed(filled.rows, filled.edge_counts, cursor)
    if lease is None:
        stats.copied_batches += 1
        _copy_out(tensors)
        team.give_back(worker, filled.slab)
    else:
        lease.seal()
    tensors.fields = filled.fields or {}
    if filled.scales is not None:
        tensors.scales = torch.from_numpy(filled.scales)
    return decoder.assemble(tensors)


def _copy_out(tensors: BatchTensors) -> None:
    """Replace tensors in a slab by copies in ordinary memory."""
    for name in ("values", "edge_index", "edge_attr"):
        value = getattr(tensors, name)
        if value is not None:
            setattr(tensors, name, value.clone())
