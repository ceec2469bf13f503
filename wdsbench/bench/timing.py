"""Interleaved timing: every case in turn, again and again, so that a slow moment hits them all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from wdsbench.bench.footprint import footprint_mb
from wdsbench.errors import WdsbenchError
from wdsbench.progress import Progress, no_progress

T = TypeVar("T")

#: Of a living loader, over all repeats together (design, section 8): an epoch may last a tenth of a
#: second, and its first batches are not like the others.
LEAST_EPOCHS = 10

#: After which a repeat begins no further epoch for the sake of their number.
MOST_SECONDS = 4.0


@dataclass(frozen=True)
class Work:
    """What one turn of a case handed out.

    Attributes:
        samples: Samples; 0 where the case has none.
        float_bytes: Bytes of their float32 batches.
        epochs: 1, or the share of an epoch after which a slow reader was stopped.
        batches: Batches; 0 where nobody asks for their rate.
    """

    samples: int
    float_bytes: int
    epochs: float = 1.0
    batches: int = 0


@dataclass(frozen=True)
class CaseResult:
    """One case, medians over repeats; None is what the case does not have.

    Attributes:
        name: Of the case.
        spread: (largest - smallest) / median over the repeats.
        repeats: How many.
        gbps: GB/s (1e9 bytes) of float32 batches, or of what the part says it counts.
        samples_per_s: Samples a second.
        batches_per_s: Batches a second.
        seconds: Of a case that is not a rate.
        epochs: Epochs that were timed, all repeats together.
        memory_mb: Anonymous and shared memory of this process and its workers after the case, or
            what the part says, in MB (1e6 bytes).
    """

    name: str
    spread: float
    repeats: int
    gbps: float | None = None
    samples_per_s: float | None = None
    batches_per_s: float | None = None
    seconds: float | None = None
    epochs: float | None = None
    memory_mb: float | None = None


@dataclass(frozen=True)
class _Repeat:
    work: Work
    seconds: float
    memory_mb: float


def consumed(
    batches: Iterable[torch.Tensor], samples: int, *, most_seconds: float | None = None
) -> Work:
    """Take every batch and drop it, as a trainer that costs nothing; `consumed_sizes` has the rest.

    Args:
        batches: One epoch.
        samples: What an epoch holds.
        most_seconds: After which no further batch is taken.
    """
    sizes = ((len(states), states.numel() * 4) for states in batches)
    return consumed_sizes(sizes, samples, most_seconds=most_seconds)


def consumed_sizes(
    sizes: Iterable[tuple[int, int]], samples: int, *, most_seconds: float | None = None
) -> Work:
    """Take batch after batch, of which only the sizes are looked at.

    Args:
        sizes: (samples, bytes) of every batch of one epoch.
        samples: What an epoch holds.
        most_seconds: After which no further batch is taken: a share of the epoch is enough for the
            rate of a reader whose batches all cost the same.

    Raises:
        WdsbenchError: The epoch ended with more samples or fewer: its rate would be a lie.
    """
    start = time.perf_counter()
    seen = float_bytes = batches = 0
    for batch_samples, batch_bytes in sizes:
        seen += batch_samples
        float_bytes += batch_bytes
        batches += 1
        if most_seconds is not None and time.perf_counter() - start >= most_seconds:
            break
    else:
        if seen != samples:
            raise WdsbenchError(f"a reader gave {seen} samples in an epoch of {samples}")
    return Work(seen, float_bytes, seen / samples, batches)


def take_turns(
    cases: Mapping[str, Callable[[], T]],
    repeats: int,
    *,
    progress: Progress = no_progress,
    what: str = "measuring",
) -> dict[str, list[T]]:
    """Return what each case returned in each repeat; in a repeat every case has one turn."""
    found: dict[str, list[T]] = {name: [] for name in cases}
    for _ in progress(range(repeats), repeats, what):
        for name, case in cases.items():
            found[name].append(case())
    return found


def interleaved(
    cases: Mapping[str, Callable[[], Work]],
    *,
    repeats: int = 5,
    least_seconds: float = 0.5,
    least_epochs: int = 1,
    progress: Progress = no_progress,
) -> list[CaseResult]:
    """Return every case's rates; ``case()`` runs one epoch of a living reader.

    After one epoch of warm-up each, every repeat runs whole epochs of every case for at least
    ``least_seconds``, and until all repeats together will have run ``least_epochs``; for the latter
    no longer than `MOST_SECONDS`.
    """
    for case in progress(cases.values(), len(cases), "warming up"):
        case()
    epochs = -(-least_epochs // repeats)
    turns = {name: _repeat_of(case, least_seconds, epochs) for name, case in cases.items()}
    return [
        _rates(name, found) for name, found in take_turns(turns, repeats, progress=progress).items()
    ]


def in_seconds(
    cases: Mapping[str, Callable[[], float]], *, repeats: int, progress: Progress = no_progress
) -> list[CaseResult]:
    """Return medians of what ``case()`` returns, in seconds, after one turn of warm-up each."""
    for case in progress(cases.values(), len(cases), "warming up"):
        case()
    return [
        CaseResult(name, spread(found), repeats, seconds=statistics.median(found))
        for name, found in take_turns(cases, repeats, progress=progress).items()
    ]


def spread(values: Sequence[float]) -> float:
    """Return (largest - smallest) / median; 0 where the median is 0."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def _repeat_of(
    case: Callable[[], Work], least_seconds: float, least_turns: int
) -> Callable[[], _Repeat]:
    def repeat() -> _Repeat:
        samples = float_bytes = batches = turns = 0
        epochs = seconds = 0.0
        start = time.perf_counter()
        while True:
            work = case()
            seconds = time.perf_counter() - start
            turns += 1
            samples += work.samples
            float_bytes += work.float_bytes
            batches += work.batches
            epochs += work.epochs
            # A reader that is stopped early is one whose epochs nobody can wait for.
            more_epochs = work.epochs == 1 and turns < least_turns and seconds < MOST_SECONDS
            if seconds >= least_seconds and not more_epochs:
                total = Work(samples, float_bytes, epochs, batches)
                return _Repeat(total, seconds, footprint_mb())

    return repeat


def _rates(name: str, found: list[_Repeat]) -> CaseResult:
    gbps = [repeat.work.float_bytes / repeat.seconds / 1e9 for repeat in found]
    samples = [repeat.work.samples / repeat.seconds for repeat in found]
    batches = [repeat.work.batches / repeat.seconds for repeat in found]
    return CaseResult(
        name=name,
        spread=spread(gbps),
        repeats=len(found),
        gbps=statistics.median(gbps),
        samples_per_s=statistics.median(samples) or None,
        batches_per_s=statistics.median(batches) or None,
        epochs=round(sum(repeat.work.epochs for repeat in found), 3),
        memory_mb=max(repeat.memory_mb for repeat in found),
    )
