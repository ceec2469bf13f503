"""Interleaved timing, and memory: cases take turns, so that a slow moment affects all."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from wdsbench.errors import WdsbenchError
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Batch

T = TypeVar("T")

#: Minimum number of epochs over all repeats: an epoch may last a tenth of a second, and its first
#: batches differ from the others.
LEAST_EPOCHS = 10

#: After this time a repeat starts no further epoch to reach their minimum number.
MOST_SECONDS = 4.0

PROC = Path("/proc")

#: (file, lines); the second, for kernels before 5.4, counts shared pages n times.
SOURCES = (
    ("smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")),
    ("status", ("RssAnon:", "RssShmem:")),
)


@dataclass(frozen=True)
class Work:
    """The amount of data that one run of a case produced."""

    samples: int  # 0 if the case has none
    float_bytes: int  # of their float32 batches
    epochs: float = 1.0  # or the share of an epoch after which a slow reader was stopped
    batches: int = 0  # 0 if their rate is not reported


@dataclass(frozen=True)
class CaseResult:
    """One case, medians over repeats; a figure that the case does not have is None."""

    name: str
    spread: float  # (largest - smallest) / median over the repeats
    repeats: int
    gbps: float | None = None  # GB/s (1e9 bytes) of float32 batches, or of the part's unit
    samples_per_s: float | None = None
    batches_per_s: float | None = None
    seconds: float | None = None  # for a case that is not a rate
    epochs: float | None = None  # timed in all repeats
    # MB (1e6 bytes) of `footprint_mb` after the case, or as the part defines it.
    memory_mb: float | None = None


@dataclass(frozen=True)
class _Repeat:
    work: Work
    seconds: float
    memory_mb: float


def consumed(
    batches: Iterable[torch.Tensor], samples: int, *, most_seconds: float | None = None
) -> Work:
    """Iterate over all batches and drop them; arguments as in `consumed_sizes`."""
    sizes = ((len(states), states.numel() * 4) for states in batches)
    return consumed_sizes(sizes, samples, most_seconds=most_seconds)


def consumed_sizes(
    sizes: Iterable[tuple[int, int]], samples: int, *, most_seconds: float | None = None
) -> Work:
    """Return the total of one epoch of ``samples``, given the (samples, bytes) of every batch.

    Iteration stops after ``most_seconds``: a share of the epoch suffices for the rate of a reader
    whose batches all cost the same.
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
            raise WdsbenchError(f"a reader returned {seen} samples; an epoch has {samples}")
    return Work(seen, float_bytes, seen / samples, batches)


def states_in(batches: Iterable[Batch]) -> Iterator[torch.Tensor]:
    """Yield the hidden states of batches."""
    return (batch.hidden for batch in batches if batch.hidden is not None)


def take_turns(
    cases: Mapping[str, Callable[[], T]],
    repeats: int,
    *,
    progress: Progress = no_progress,
    what: str = "measuring",
) -> dict[str, list[T]]:
    """Return the results of each case; every case runs once per repeat, one after the other."""
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
    """Return the rates of all cases; ``case()`` runs one epoch of a reader that stays open.

    After one epoch of warm-up, every repeat runs whole epochs of a case for at least
    ``least_seconds`` and its share of ``least_epochs``, the latter for at most `MOST_SECONDS`.
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
    """Return the medians of the seconds that ``case()`` returns, after one warm-up run each."""
    for case in progress(cases.values(), len(cases), "warming up"):
        case()
    return [
        CaseResult(name, spread(found), repeats, seconds=statistics.median(found))
        for name, found in take_turns(cases, repeats, progress=progress).items()
    ]


def spread(values: Sequence[float]) -> float:
    """Return (largest - smallest) / median, or 0 if the median is 0."""
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
            # A reader that was stopped early needs no whole epochs.
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


def footprint_mb(pid: int | None = None) -> float:
    """Return MB (1e6 bytes) of memory that the kernel cannot reclaim: anonymous and shared pages.

    They are those of a process (default: this one) and its running descendants, without the page
    cache. Sizes are proportional shares (Pss): a page mapped by n processes counts 1/n in each, so
    that a slab shared by a trainer and its workers counts once. Without ``/proc`` (macOS) the
    result is 0. Source: proc(5), ``/proc/PID/smaps_rollup``.
    """
    return sum(_own_bytes(each) for each in _family(os.getpid() if pid is None else pid)) / 1e6


def _family(pid: int) -> list[int]:
    found = [pid]
    for process in found:  # the list grows during iteration
        for path in (PROC / str(process) / "task").glob("*/children"):
            try:
                found += [int(word) for word in path.read_text(encoding="ascii").split()]
            except OSError:  # the thread has ended
                continue
    return found


def _own_bytes(pid: int) -> int:
    for name, wanted in SOURCES:
        try:
            lines = (PROC / str(pid) / name).read_text(encoding="ascii").splitlines()
        except OSError:  # an older kernel, or the process has ended
            continue
        kilobytes = [int(line.split()[1]) for line in lines if line.startswith(wanted)]
        if len(kilobytes) == len(wanted):
            return sum(kilobytes) * 1024
    return 0


def new_process(module: str, arguments: Sequence[str], **environment: str) -> Callable[[], float]:
    """Return a case that runs ``python -m module`` with further variables of the environment, and
    returns the number that it prints last.
    """

    def run() -> float:
        words = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env={**os.environ, **environment}
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise WdsbenchError(f"{' '.join(words[1:])}: {lines[-1]}")
        return float(done.stdout.splitlines()[-1])

    return run
