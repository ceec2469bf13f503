"""How a share of an epoch becomes batches, whose turn each batch is, and where to go on.

All ranks take the same number of steps, by construction: worker w of every rank makes as many
batches as worker w of the rank with the largest share needs. Shares differ by one sample at most,
so a shorter one is spread over as many batches, smaller ones; nothing is repeated, nothing dropped
(a batch of no samples is possible where batches hold one sample). With ``drop_last`` all batches
are full, as many as the smallest share has.

The batches of a rank's workers come in turn; a worker whose share is used up is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Start:
    """Where in an epoch reading starts.

    Attributes:
        batches: Batches of this rank that were handed out before.
        workers: Readers of a rank among whom the epoch was dealt then; it keeps that deal, whoever
            reads the rest of it.
    """

    batches: int = 0
    workers: int = 1


def batch_sizes(samples: int, batch_size: int, steps: int) -> list[int]:
    """Return the sizes of ``steps`` batches of a share: full ones and the rest where that makes as
    many, else sizes that differ by one at most.

    The sum is less than ``samples`` only where ``steps`` full batches do not hold them
    (``drop_last``).
    """
    if steps == -(-samples // batch_size) or samples >= steps * batch_size:
        places = range(0, min(samples, steps * batch_size), batch_size)
        return [min(batch_size, samples - place) for place in places]
    size, larger = divmod(samples, steps)
    return [size + 1] * larger + [size] * (steps - larger)


@dataclass(frozen=True)
class Turns:
    """Whose turns come after some batches of an epoch.

    Attributes:
        done: Batches that each worker has handed out.
        order: Workers in the order of their next turns, those that are through last.
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
    through = [worker for worker in range(len(steps)) if worker not in waiting]
    return Turns(done, [*waiting, *through])


def in_turn(parts: Sequence[Iterator[list[int]]], order: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of each worker's ``parts`` in turn, beginning in the given order."""
    waiting = deque(order)
    while waiting:
        worker = waiting.popleft()
        rows = next(parts[worker], None)
        if rows is not None:
            waiting.append(worker)
            yield rows
