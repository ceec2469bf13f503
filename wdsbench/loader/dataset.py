"""``TraceDataset``: single samples as a ``torch.utils.data.IterableDataset``, for a ``DataLoader``
and a ``collate_fn`` of one's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import webdataset
from torch.utils.data import IterableDataset

from wdsbench import _core
from wdsbench.loader.arguments import at_least, make_plan
from wdsbench.loader.decode import BatchDecoder, PendingBatch
from wdsbench.loader.plan import is_sparse
from wdsbench.loader.reading import Reading
from wdsbench.loader.select import Tokens
from wdsbench.records import Batch
from wdsbench.shards.read.open import open_index
from wdsbench.slabs import OrdinaryMemory
from wdsbench.stream.files import open_shards

#: Samples decoded in one call; their tensors lie in one block of memory.
SAMPLES_AT_ONCE = 16


class TraceDataset(IterableDataset[dict[str, Any]]):
    """Iterates over the samples of one split.

    Each is a dict: ``hidden`` float32 ``[L, D]`` (one token) or ``[L, T, D]``, ``label`` and
    ``score`` float32, ``token_count`` and ``prompt_length`` int64, ``question_id`` and ``key``;
    with the fields ``logprobs`` and ``meta`` these too. In the workers of a ``DataLoader`` every
    sample comes from exactly one of them.

    ``hidden`` is a view into a block of a few samples, in ordinary memory: to keep single ones for
    long, ``clone()`` them. For batches, :class:`wdsbench.TraceLoader` is faster.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        split: str | None = "train",
        *,
        fields: Sequence[str] = ("hidden",),
        layers: Sequence[int] | slice | int | None = None,
        tokens: Tokens = "last_answer",
        shuffle: int = 1000,
        seed: int = 0,
        threads: int = 1,
        verify: str = "header",
    ) -> None:
        """Open a data set; the arguments are those of :class:`wdsbench.TraceLoader`."""
        self.index = open_index(path)
        self._epoch = 0
        shuffle = at_least(shuffle, 0, "shuffle")
        self._reading = Reading(self.index, split, SAMPLES_AT_ONCE, False, shuffle, seed)
        rows = self._reading.rows()
        self._plan = make_plan(
            self.index,
            rows,
            fields=fields,
            layers=layers,
            tokens=tokens,
            layout="separate",
            threads=threads,
            verify=verify,
        )
        self._access = "sparse" if is_sparse(self._plan, self.index, rows) else "map"
        self._files: _core.ShardFiles | None = None

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch ``epoch``.

        Call it before each epoch where a ``DataLoader`` starts its workers anew: they are copies
        and know nothing of earlier ones.
        """
        self._epoch = at_least(epoch, 0, "epoch")

    def __len__(self) -> int:
        """Return the exact number of samples of an epoch on this rank."""
        return self._reading.share()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the samples of one epoch.

        Raises:
            ShardError: A shard cannot be read. DecodeError: a member is damaged.
        """
        epoch, self._epoch = self._epoch, self._epoch + 1
        files = self._open()
        decoder = BatchDecoder(self.index, self._plan, files)
        ahead = None if self._access == "sparse" else _core.ReadAhead(files)
        pending: PendingBatch | None = None
        for rows in webdataset.batched(self._reading.batch_size, collation_fn=None)(
            self._reading.samples(epoch, ahead)
        ):
            started = decoder.start(rows, OrdinaryMemory())
            if pending is not None:
                yield from self._samples(decoder, pending)
            pending = started
        if pending is not None:
            yield from self._samples(decoder, pending)

    def __getstate__(self) -> dict[str, Any]:
        """Travel to another process without open shards."""
        return {**self.__dict__, "_files": None}

    def _open(self) -> _core.ShardFiles:
        if self._files is None:
            self._files = open_shards(self.index, access=self._access)
        return self._files

    def _samples(self, decoder: BatchDecoder, pending: PendingBatch) -> Iterator[dict[str, Any]]:
        tensors = decoder.tensors(pending)
        flat, tensors.hidden = tensors.hidden, None
        batch = decoder.assemble(pending.rows, tensors)
        targets, lengths = pending.layout.targets.tolist(), pending.layout.lengths.tolist()
        for i in range(len(batch)):
            sample = _one(batch, i)
            if flat is not None:
                axes = (self._plan.layers.size, lengths[i], self.index.num_features)
                block = flat[targets[i] : targets[i] + axes[0] * axes[1] * axes[2]]
                states = block.view(axes)
                sample["hidden"] = states[:, 0] if self._plan.squeeze else states
            yield sample


def _one(batch: Batch, i: int) -> dict[str, Any]:
    """Return what a batch says of sample ``i``, the states apart."""
    sample: dict[str, Any] = {
        "key": batch.keys[i],
        "question_id": batch.question_ids[i],
        "label": batch.label[i],
        "score": batch.score[i],
        "token_count": batch.token_count[i],
        "prompt_length": batch.prompt_length[i],
    }
    if batch.logprobs is not None:
        values = batch.logprobs[i]
        sample["logprobs"] = None if values is None else torch.from_numpy(values)
    if batch.meta is not None:
        sample["meta"] = batch.meta[i]
    return sample
