"""``TraceLoader``: an iterator of batches over one split of a data set.

With ``num_workers=0`` everything happens in the training process: while the trainer works on batch
n, C++ threads decode batch n + 1, and Python has prepared batch n + 2. With ``num_workers=N`` the
same pipeline runs in N processes, which are dealt disjoint pieces by WebDataset's splitters and
decode into shared slabs. Both give the same samples; the order is a function of (seed, epoch, rank,
ranks, worker, workers).
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from wdsbench import _core
from wdsbench.errors import ShardError
from wdsbench.loader.arguments import as_device, at_least, make_plan, widens_on_device
from wdsbench.loader.decode import BatchDecoder, BatchPools, BatchTensors, PendingBatch, PoolMemory
from wdsbench.loader.move import move_batch
from wdsbench.loader.plan import batch_bytes, is_sparse
from wdsbench.loader.position import Position, as_state, from_state
from wdsbench.loader.reading import Reading
from wdsbench.loader.select import LAYOUTS, Tokens
from wdsbench.loader.stats import LoaderStats, disk_bytes
from wdsbench.loader.steps import Start, turns_after
from wdsbench.loader.team import WorkerTeam
from wdsbench.loader.worker import Filled
from wdsbench.records import Batch, FieldSpec
from wdsbench.shards.read.open import open_index
from wdsbench.slabs import OrdinaryMemory, SlabCursor
from wdsbench.slabs.transfer import DeviceCopies
from wdsbench.stream.files import open_shards

#: Batches that are being decoded or wait for it while the trainer has another.
BATCHES_AHEAD = 2


class TraceLoader:
    """Iterates over the batches of one split; see :class:`wdsbench.records.Batch` for shapes and
    dtypes.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        split: str | None = "train",
        *,
        fields: Sequence[str] = ("hidden",),
        layers: Sequence[int] | slice | int | None = None,
        tokens: Tokens = "last_answer",
        layout: str = "stack",
        batch_size: int = 32,
        drop_last: bool = False,
        shuffle: int = 1000,
        seed: int = 0,
        num_workers: int = 0,
        threads: int | None = None,
        device: str | torch.device | None = None,
        widen: str = "host",
        verify: str = "header",
    ) -> None:
        """Open a data set.

        Args:
            path: Folder with an index; or tar files: one, a pattern with braces or stars, a list.
            split: train, val, test; None: all.
            fields: hidden, logprobs, meta, sketch; empty: what the index holds alone (labels,
                lengths, ids).
            layers: None: all; indices, or a slice.
            tokens: ``"last"``, ``"last_answer"`` (one token; its axis is left out), ``"answer"``,
                ``"all"``, k (the last k), ``("first", k)``.
            layout: ``"stack"`` (equal lengths), ``"pad"`` (to the batch's longest, zeros behind),
                ``"jagged"``; ``batch.graph`` of all tokens: ``"graph"`` (one a sample and layer),
                ``"union-graph"`` (one a sample, an edge wherever some head attends).
            batch_size: Samples a batch.
            drop_last: Leave out a last batch that is not full.
            shuffle: Size of the shuffle buffer in samples; 0: the order of the shards.
            seed: Of every order.
            num_workers: Reading processes; 0: this process.
            threads: Decode threads of this process; None: its usable cores, at most 8. Workers
                decode on one each.
            device: Where batches arrive; None: host memory, pinned if CUDA is available. A CUDA
                device gets them on a stream of its own, one batch ahead.
            widen: Where float16 becomes float32: ``"host"``, while it is copied out
                of the shard; ``"device"``, which halves the bytes that travel there.
            verify: ``"header"``: headers, sizes and counts; ``"hash"``: also XXH3 of members that
                are read whole.

        Raises:
            ShardError: No data set, or a damaged one. DecodeError: the split cannot give what is
                asked for.
            ValueError: An argument outside its range.
        """
        self.index = open_index(path)
        self.split = split
        self.batch_size = at_least(batch_size, 1, "batch_size")
        self.drop_last = drop_last
        self.seed = operator.index(seed)
        self.num_workers = at_least(num_workers, 0, "num_workers")
        self.device = None if device is None else as_device(device)
        self.stats = LoaderStats()
        self._epoch = 0
        shuffle = at_least(shuffle, 0, "shuffle")
        if layout not in LAYOUTS:
            raise ValueError(f"layout: {layout!r} is not one of {', '.join(LAYOUTS)}")
        self._reading = Reading(self.index, split, self.batch_size, drop_last, shuffle, self.seed)
        rows = self._reading.rows()
        self._plan = make_plan(
            self.index,
            rows,
            fields=fields,
            layers=layers,
            tokens=tokens,
            layout=layout,
            threads=threads,
            verify=verify,
            raw=widens_on_device(widen, self.device, self.index),
        )
        self._batch_bytes = batch_bytes(self._plan, self.index, rows, self.batch_size)
        self._access = "sparse" if is_sparse(self._plan, self.index, rows) else "map"
        self._pools = BatchPools(*self._batch_bytes)
        self._files = open_shards(self.index, access=self._access)
        self._team: WorkerTeam | None = None
        # Where the epoch stands that is under way or was broken off; None between epochs.
        self._at: Position | None = None
        self._resumed: Position | None = None  # where the next iteration goes on, if at all
        self._living = 0  # iterations under way

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """Stored fields with dtype and shape."""
        return self.index.fields

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch ``epoch``; without a call, every iteration is the next
        one.
        """
        self._epoch = at_least(epoch, 0, "epoch")
        if self._resumed is not None and self._resumed.epoch != epoch:
            self._resumed = None
        if not self._living:
            self._at = None

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands, as small JSON: after the batch handed out last, or before
        the next epoch. The same on all ranks.
        """
        next_one = Position(self._epoch, Start(0, self._readers))
        return as_state(self._at or self._resumed or next_one, self._reading)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where ``state`` was taken, with the very same batches.

        The number of workers may be another one. The order up to there is replayed, which reads no
        shard; ``len()`` stays that of whole epochs.

        Raises:
            ValueError: The state is of another order: data, split, seed, batch size, ranks, ...
        """
        self._resumed = from_state(state, self._reading)
        self._epoch = self._resumed.epoch
        self._at = None

    def close(self) -> None:
        """End the worker processes; the next iteration starts new ones."""
        team, self._team = self._team, None
        if team is not None:
            team.close()

    def __len__(self) -> int:
        """Return the exact number of batches of an epoch on this rank."""
        return sum(self._reading.steps(self._readers))

    @property
    def _readers(self) -> int:
        return max(self.num_workers, 1)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one epoch.

        Raises:
            ShardError: A shard cannot be read, or samples went missing. DecodeError: a member is
                damaged. WdsbenchError: a worker process died, or has no memory.
        """
        epoch, self._epoch = self._epoch, self._epoch + 1
        begun, self._resumed = self._resumed, None
        start = Start(0, self._readers) if begun is None else begun.start
        workers = self.num_workers
        stats = LoaderStats(epoch=epoch, decoders=workers or self._plan.threads)
        self.stats = stats
        read = self._from_workers if workers else self._from_threads
        batches = read(stats, start)
        copies = None
        if self.device is not None:
            copies = DeviceCopies(self.device, partial(move_batch, device=self.device))
            batches = copies(batches)
        if not workers:
            disk_before = disk_bytes()
        self._at = Position(epoch, start)
        self._living += 1
        began = asked = time.perf_counter()
        try:
            while (batch := next(batches, None)) is not None:
                handed = time.perf_counter()
                stats.trainer_waited_seconds += handed - asked
                stats.seconds = handed - began
                stats.samples += len(batch)
                stats.batches += 1
                self._at = Position(epoch, replace(start, batches=start.batches + stats.batches))
                if copies is not None:
                    stats.copy_seconds = copies.copy_seconds
                if not workers:
                    stats.disk_bytes = disk_bytes() - disk_before
                yield batch
                del batch
                asked = time.perf_counter()
        finally:
            self._living -= 1
            batches.close()
        self._at = None
        if copies is not None:
            stats.copy_seconds = copies.copy_seconds
        self._check_count(stats, start)

    def _from_threads(self, stats: LoaderStats, start: Start) -> Generator[Batch]:
        """Yield batches that are decoded in this process."""
        ahead = None if self._access == "sparse" else _core.ReadAhead(self._files)
        decoder = BatchDecoder(self.index, self._plan, self._files)
        under_way: deque[tuple[PendingBatch, PoolMemory]] = deque()
        try:
            for rows in self._reading.row_lists(stats.epoch, ahead, start):
                memory = self._pools.batch()
                under_way.append((decoder.start(rows, memory), memory))
                if len(under_way) == BATCHES_AHEAD:
                    yield self._finished(decoder, *under_way.popleft(), stats)
            while under_way:
                yield self._finished(decoder, *under_way.popleft(), stats)
        except ShardError:
            # A shard that is put right by a new file is found by its name.
            self._files = open_shards(self.index, access=self._access)
            raise

    def _finished(
        self, decoder: BatchDecoder, pending: PendingBatch, memory: PoolMemory, stats: LoaderStats
    ) -> Batch:
        asked = time.perf_counter()
        batch = decoder.assemble(pending.rows, decoder.tensors(pending))
        if pending.run is not None:
            stats.decode_seconds += pending.run.busy_seconds
            stats.loader_waited_seconds += max(0.0, asked - pending.run.done_at)
        stats.bytes_read = decoder.bytes_read
        stats.copied_batches += memory.ordinary
        return batch

    def _from_workers(self, stats: LoaderStats, start: Start) -> Generator[Batch]:
        """Yield batches that worker processes decode, in turn."""
        # A second iterator beside a living one has workers of its own.
        team, self._team = self._team, None
        if team is None or not team.is_ours:
            team = WorkerTeam(
                self.num_workers, self._reading, self._plan, self._access, sum(self._batch_bytes)
            )
        decoder = BatchDecoder(self.index, self._plan, self._files)
        on_disk: dict[int, int] = {}
        try:
            for worker, filled in team.run(stats.epoch, start, self._turns(start)):
                asked = time.perf_counter()
                batch = self._received(team, worker, filled, decoder, stats)
                stats.decode_seconds += filled.decode_seconds
                stats.loader_waited_seconds += max(0.0, asked - filled.done_at)
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

    def _turns(self, start: Start) -> list[int]:
        """Return the workers in the order of their first turns."""
        if start.workers != self._readers:  # batch after batch of the rest is dealt anew
            return list(range(self._readers))
        return turns_after(self._reading.steps(self._readers), start.batches).order

    def _keep(self, team: WorkerTeam) -> None:
        """Keep a team for the next epoch; one is enough."""
        if self._team is None or not self._team.is_ours:
            self._team = team
        else:
            team.close()

    def _received(
        self,
        team: WorkerTeam,
        worker: int,
        filled: Filled,
        decoder: BatchDecoder,
        stats: LoaderStats,
    ) -> Batch:
        """Return the batch of a slab: where it lies, or copied out where the worker needs it."""
        rows = filled.rows
        if filled.slab is None:
            stats.copied_batches += 1
            before = decoder.bytes_read
            pending = decoder.start(rows.tolist(), OrdinaryMemory())
            batch = decoder.assemble(rows, decoder.tensors(pending))
            stats.bytes_read += decoder.bytes_read - before
            stats.decode_seconds += 0.0 if pending.run is None else pending.run.busy_seconds
            return batch
        lease = team.lease(worker, filled.slab)
        cursor = SlabCursor(team.memory(worker, filled.slab), lease)
        tensors = decoder.placed(rows, filled.edge_counts, cursor)
        if lease is None:
            stats.copied_batches += 1
            _copy_out(tensors)
            team.give_back(worker, filled.slab)
        else:
            lease.seal()
        tensors.metas, tensors.sketches = filled.metas, filled.sketches
        if filled.scales is not None:
            tensors.scales = torch.from_numpy(filled.scales)
        return decoder.assemble(rows, tensors)

    def _check_count(self, stats: LoaderStats, start: Start) -> None:
        """Prove that an epoch that ended has lost nothing."""
        expected = self._reading.count_samples(self._readers, start)
        if stats.samples != expected:
            raise ShardError(
                f"epoch {stats.epoch} gave {stats.samples} samples, the index says {expected}",
                shard=str(self.index.folder),
            )


def _copy_out(tensors: BatchTensors) -> None:
    """Move what lies in a slab into ordinary memory."""
    for name in ("hidden", "edge_index", "edge_attr"):
        value = getattr(tensors, name)
        if value is not None:
            setattr(tensors, name, value.clone())
