"""Orders that are the same in every run: generators seeded by a hash, and the shuffle buffer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

import webdataset
import xxhash

from wdsbench.stream.assign import Consumer, this_consumer

T = TypeVar("T")


class OrderRandom(random.Random):
    """Python's generator with a faster ``randint``, which WebDataset's shuffle calls for each
    sample.

    Python's own uses rejection sampling, which costs four times as much as the rest of the stage.
    The multiplication is biased by less than 2^-43 for the sizes of shuffle buffers.
    """

    def randint(self, a: int, b: int) -> int:
        return a + int(self.random() * (b - a + 1))


def order_rng(*parts: int | str) -> OrderRandom:
    """Return a generator seeded by the XXH3-64 of ``parts``; each stage passes its own name."""
    text = "\0".join(str(part) for part in parts)
    return OrderRandom(xxhash.xxh3_64_intdigest(text.encode()))


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
