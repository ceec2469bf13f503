"""The position of a loader as small JSON, for ``state_dict`` and ``load_state_dict``.

The order of samples is a function of the values stored here, so the batches after a position are
found by replaying the order. All ranks are at the same step, so the state of one rank is valid for
all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from wdsbench.loader.batch_order import BatchOrder, EpochOffset
from wdsbench.stream import this_consumer

FORMAT = 1


@dataclass(frozen=True)
class Position:
    """A place between two batches."""

    epoch: int
    start: EpochOffset


def as_state(position: Position, order: BatchOrder) -> dict[str, Any]:
    """Return ``position`` and everything on which the order depends."""
    return {
        "format": FORMAT,
        "epoch": position.epoch,
        "batches": position.start.batches,
        "workers": position.start.workers,
        **_settings(order),
    }


def from_state(state: Mapping[str, Any], order: BatchOrder) -> Position:
    """Return the position in ``state``; ValueError if it is not a position in ``order``."""
    if state.get("format") != FORMAT:
        raise ValueError(f"loader state of format {state.get('format')!r}, not {FORMAT}")
    for name, value in _settings(order).items():
        if state.get(name) != value:
            raise ValueError(
                f"loader state: {name} was {state.get(name)!r} and is {value!r} now; an epoch can"
                " be resumed only in the order in which it began"
            )
    numbers = [state.get(name) for name in ("epoch", "batches", "workers")]
    if not all(type(number) is int and number >= 0 for number in numbers) or numbers[2] == 0:
        raise ValueError(f"loader state: epoch, batches, workers are {numbers!r}")
    epoch, batches, workers = (int(number) for number in numbers if number is not None)
    steps = sum(order.steps(workers))
    if batches > steps:
        raise ValueError(f"loader state: batches is {batches} of an epoch of {steps}")
    return Position(epoch, EpochOffset(batches, workers))


def _settings(order: BatchOrder) -> dict[str, Any]:
    shards = [(shard.url, shard.nsamples, shard.xxh3) for shard in order.index.file.shardlist]
    return {
        "seed": order.seed,
        "split": order.split,
        "batch_size": order.batch_size,
        "drop_last": order.drop_last,
        "shuffle": order.shuffle,
        "ranks": this_consumer().ranks,
        "shards": xxhash.xxh3_64_hexdigest(repr(shards).encode()),
    }
