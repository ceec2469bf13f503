"""WebDataset's shuffle buffer with an order of our own: new every epoch, the same in every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import webdataset

from wdsbench.stream.assign import this_consumer
from wdsbench.stream.order import order_rng

T = TypeVar("T")


class EpochShuffle:
    """Passes items through ``wds.shuffle`` with a generator made of (seed, epoch, rank, worker)."""

    def __init__(self, size: int, *, seed: int = 0) -> None:
        self._size = size
        self._seed = seed
        self.epoch = 0

    def __call__(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items from a buffer that is filled before the first one leaves."""
        consumer = this_consumer()
        rng = order_rng("samples", self._seed, self.epoch, consumer.number, consumer.count)
        stage = webdataset.shuffle(self._size, initial=self._size, rng=rng)
        yield from stage(iter(items))
