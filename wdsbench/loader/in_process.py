"""Batches decoded in the training process, by C++ threads, a few batches ahead of the consumer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator

from wdsbench import _core
from wdsbench.errors import ShardError
from wdsbench.loader.arguments import OpenSplit
from wdsbench.loader.decode import BatchDecoder, PendingBatch
from wdsbench.loader.stats import LoaderStats
from wdsbench.loader.steps import EpochOffset
from wdsbench.records import Batch
from wdsbench.slabs import PoolMemory, SlabPool
from wdsbench.stream.files import open_shards

#: Batches that are decoded, or wait for it, while the consumer has another.
BATCHES_AHEAD = 2


class InProcessReader:
    """Reads epochs with ``num_workers=0``."""

    def __init__(self, split: OpenSplit) -> None:
        self._split = split
        self._files = open_shards(split.order.index, access=split.access)
        states, edges = split.batch_bytes
        self._pools = SlabPool(states), SlabPool(edges), SlabPool(edges)

    def epoch(self, stats: LoaderStats, start: EpochOffset) -> Generator[Batch]:
        """Yield the batches of epoch ``stats.epoch``."""
        split = self._split
        ahead = None if split.access == "sparse" else _core.ReadAhead(self._files)
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
            # A shard that is repaired by a new file is found by its name.
            self._files = open_shards(split.order.index, access=split.access)
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
