"""WebDataset's shuffle buffer with a new order every epoch that is the same in every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import webdataset

from wdsbench.stream.assign import Consumer, this_consumer
from wdsbench.stream.order import order_rng

T = TypeVar("T")


class EpochShuffle:
    """Passes items through ``wds.shuffle`` with a generator made of (seed, epoch, rank, worker)."""

    def __init__(self, size: int, *, seed: int = 0, consumer: Consumer | None = None) -> None:
        """Create a buffer of ``size`` items, in the order of ``consumer`` (None: this process)."""
        self._size = size
        self._seed = seed
        self._consumer = consumer
        self.epoch = 0

    def __call__(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items from a buffer that is filled before the first is yielded."""
        consumer = self._consumer or this_consumer()
        rng = order_rng("samples", self._seed, self.epoch, consumer.number, consumer.count)
        stage = webdataset.shuffle(self._size, initial=self._size, rng=rng)
        yield from stage(iter(items))
