"""Interleaved timing: every case in turn, again and again, so that a slow moment hits them all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wdsbench.progress import Progress, no_progress


@dataclass(frozen=True)
class Work:
    """What one epoch of a case handed out.

    Attributes:
        samples: Samples.
        float_bytes: Bytes of their float32 batches.
    """

    samples: int
    float_bytes: int


@dataclass(frozen=True)
class CaseResult:
    """One case, medians over repeats.

    Attributes:
        name: Of the case.
        gbps: Float32 GB/s (1e9 bytes).
        samples_per_s: Samples a second; 0 where a case has none.
        spread: (largest - smallest) / median of the rate.
        epochs: Epochs that were timed.
        memory_mb: Anonymous and shared memory of this process after the case, in MB.
    """

    name: str
    gbps: float
    samples_per_s: float
    spread: float
    epochs: int
    memory_mb: float


def interleaved(
    cases: Mapping[str, Callable[[], Work]],
    *,
    repeats: int = 5,
    least_seconds: float = 0.5,
    progress: Progress = no_progress,
) -> list[CaseResult]:
    """Return every case's rates; ``case()`` runs one epoch of a living reader.

    After one epoch of warm-up each, every repeat runs whole epochs of every case for at least
    ``least_seconds``.
    """
    for case in progress(cases.values(), len(cases), "warming up"):
        case()
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    epochs = dict.fromkeys(cases, 0)
    memory = dict.fromkeys(cases, 0.0)
    for _ in progress(range(repeats), repeats, "measuring"):
        for name, case in cases.items():
            samples = float_bytes = 0
            start = time.perf_counter()
            while (seconds := time.perf_counter() - start) < least_seconds or not samples:
                work = case()
                samples += work.samples
                float_bytes += work.float_bytes
                epochs[name] += 1
            rates[name].append((float_bytes / seconds / 1e9, samples / seconds))
            memory[name] = max(memory[name], memory_mb())
    return [
        CaseResult(
            name=name,
            gbps=statistics.median(rate for rate, _ in found),
            samples_per_s=statistics.median(rate for _, rate in found),
            spread=_spread([rate for rate, _ in found]),
            epochs=epochs[name],
            memory_mb=memory[name],
        )
        for name, found in rates.items()
    ]


def memory_mb() -> float:
    """Return anonymous and shared memory of this process in MB; 0 where /proc does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    lines = (line.split() for line in status.read_text(encoding="ascii").splitlines())
    wanted = ("RssAnon:", "RssShmem:")
    return sum(int(words[1]) * 1024 / 1e6 for words in lines if words[0] in wanted)


def _spread(rates: list[float]) -> float:
    return (max(rates) - min(rates)) / statistics.median(rates)
