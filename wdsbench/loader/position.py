"""Where a loader stands, as small JSON: what ``state_dict`` gives and ``load_state_dict`` takes.

A position says nothing of samples: the order is a function of what is written here, so that the
batches after it are found by replaying the order, not by remembering it. All ranks stand at the
same step, so one rank's state serves all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from wdsbench.loader.reading import Reading
from wdsbench.loader.steps import Start
from wdsbench.stream import this_consumer

FORMAT = 1


@dataclass(frozen=True)
class Position:
    """A place between two batches.

    Attributes:
        epoch: Which.
        start: Where in it.
    """

    epoch: int
    start: Start


def as_state(position: Position, reading: Reading) -> dict[str, Any]:
    """Return ``position`` with everything on which the order depends."""
    return {
        "format": FORMAT,
        "epoch": position.epoch,
        "batches": position.start.batches,
        "workers": position.start.workers,
        **_order(reading),
    }


def from_state(state: Mapping[str, Any], reading: Reading) -> Position:
    """Return the position in ``state``.

    Raises:
        ValueError: It is none of this version, or of another order than ``reading``.
    """
    if state.get("format") != FORMAT:
        raise ValueError(f"loader state of format {state.get('format')!r}, not {FORMAT}")
    for name, value in _order(reading).items():
        if state.get(name) != value:
            raise ValueError(
                f"loader state: {name} was {state.get(name)!r} and is {value!r} now; an epoch goes"
                " on only in the order in which it began"
            )
    numbers = [state.get(name) for name in ("epoch", "batches", "workers")]
    if not all(type(number) is int and number >= 0 for number in numbers) or numbers[2] == 0:
        raise ValueError(f"loader state: epoch, batches, workers are {numbers!r}")
    epoch, batches, workers = (int(number) for number in numbers if number is not None)
    steps = sum(reading.steps(workers))
    if batches > steps:
        raise ValueError(f"loader state: batches is {batches} of an epoch of {steps}")
    return Position(epoch, Start(batches, workers))


def _order(reading: Reading) -> dict[str, Any]:
    shards = [(shard.url, shard.nsamples, shard.xxh3) for shard in reading.index.file.shardlist]
    return {
        "seed": reading.seed,
        "split": reading.split,
        "batch_size": reading.batch_size,
        "drop_last": reading.drop_last,
        "shuffle": reading.shuffle,
        "ranks": this_consumer().ranks,
        "shards": xxhash.xxh3_64_hexdigest(repr(shards).encode()),
    }
