"""How a share of an epoch is cut into batches, and which worker yields each batch.

All ranks take the same number of steps by construction: worker w of every rank makes as many
batches as worker w of the rank with the largest share needs. Shares differ by at most one sample,
so a shorter share is spread over the same number of smaller batches; no sample is repeated or
dropped (with batches of one sample, a batch can be empty). With ``drop_last`` all batches are full,
as many as in the smallest share.

The workers of a rank take turns; a worker whose share is used up is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochOffset:
    """A place within an epoch.

    Attributes:
        batches: Batches of this rank before it.
        workers: Number of readers per rank when the epoch began. The order of the epoch depends on
            it, even if another number of workers reads the rest.
    """

    batches: int = 0
    workers: int = 1


def batch_sizes(samples: int, batch_size: int, steps: int) -> list[int]:
    """Return the sizes of ``steps`` batches of a share: full batches and a rest if that makes
    ``steps`` batches, otherwise sizes that differ by at most one.

    The sum is less than ``samples`` only if ``steps`` full batches do not hold them
    (``drop_last``).
    """
    if steps == -(-samples // batch_size) or samples >= steps * batch_size:
        places = range(0, min(samples, steps * batch_size), batch_size)
        return [min(batch_size, samples - place) for place in places]
    size, larger = divmod(samples, steps)
    return [size + 1] * larger + [size] * (steps - larger)


@dataclass(frozen=True)
class Turns:
    """The turns of workers after some batches of an epoch.

    Attributes:
        done: Batches that each worker has yielded.
        order: Workers in the order of their next turns, finished ones last.
    """

    done: list[int]
    order: list[int]


def turns_after(steps: Sequence[int], batches: int) -> Turns:
    """Return the turns after ``batches`` of an epoch in which worker w makes ``steps[w]``.

    Raises:
        ValueError: The epoch has fewer batches.
    """
    if not 0 <= batches <= sum(steps):
        raise ValueError(f"batches: {batches} of an epoch of {sum(steps)}")
    done = [0] * len(steps)
    waiting = deque(worker for worker, count in enumerate(steps) if count)
    for _ in range(batches):
        worker = waiting.popleft()
        done[worker] += 1
        if done[worker] < steps[worker]:
            waiting.append(worker)
    finished = [worker for worker in range(len(steps)) if worker not in waiting]
    return Turns(done, [*waiting, *finished])


def in_turn(parts: Sequence[Iterator[list[int]]], order: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of each worker's ``parts`` in turn, starting in the given order."""
    waiting = deque(order)
    while waiting:
        worker = waiting.popleft()
        rows = next(parts[worker], None)
        if rows is not None:
            waiting.append(worker)
            yield rows
