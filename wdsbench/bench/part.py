"""What a part of a scenario is given, and what it gives: results, ratios, and how to show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from wdsbench.bench.timing import LEAST_EPOCHS, CaseResult, Work, interleaved
from wdsbench.progress import Progress, no_progress

#: A result's number that a part is about.
Measure = Literal["gbps", "samples_per_s", "batches_per_s", "seconds", "memory_mb"]

#: Decode threads of ours, threads of torch, worker processes, samples of a shuffle buffer.
THREADS = 2
WORKERS = 2
SHUFFLE = 1000

#: The loader on two decode threads: what "ours" means in a ratio.
OURS = "ours-t2"


@dataclass(frozen=True)
class Settings:
    """How to run a part.

    Attributes:
        data: Folder for all data, each set in a folder of its own.
        repeats: Of which the median counts.
        scale: Share of the samples.
        least_seconds: Of a repeat of a rate.
        more_readers: Also the readers that are left out by default.
        progress: Told what is being done.
    """

    data: Path
    repeats: int = 5
    scale: float = 1.0
    least_seconds: float = 0.5
    more_readers: bool = False
    progress: Progress = no_progress


@dataclass(frozen=True)
class Part:
    """A measured part.

    Attributes:
        name: Prefix of its cases and ratios in the JSON.
        title: One line for people: what was read.
        results: One each case; the baseline first where there is one.
        ratios: By name, without the prefix.
        measure: The number that tables and plots show.
        unit: Of that number.
        baseline: The case that others are shown beside, or None.
        facts: What the figures depend on, and what was seen beside them.
        notes: Sentences for people.
    """

    name: str
    title: str
    results: Sequence[CaseResult]
    ratios: Mapping[str, float]
    measure: Measure = "gbps"
    unit: str = "float32 GB/s"
    baseline: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def value(self, name: str) -> float:
        """Return the number of a case that the part is about."""
        return value_of(self.results, name, self.measure)


def measured_rates(cases: Mapping[str, Callable[[], Work]], settings: Settings) -> list[CaseResult]:
    """Return the rates of living readers, torch on as many threads as the others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        return interleaved(
            cases,
            repeats=settings.repeats,
            least_seconds=settings.least_seconds,
            least_epochs=LEAST_EPOCHS,
            progress=settings.progress,
        )
    finally:
        torch.set_num_threads(threads)


def value_of(results: Sequence[CaseResult], name: str, measure: Measure) -> float:
    """Return one number of one case.

    Raises:
        KeyError: There is no such case, or it has no such number.
    """
    found = [getattr(result, measure) for result in results if result.name == name]
    if len(found) != 1 or found[0] is None:
        raise KeyError(f"{measure} of {name}")
    return float(found[0])


def rate_ratios(results: Sequence[CaseResult], measure: Measure = "gbps") -> dict[str, float]:
    """Return `OURS` over every other reader, and worker processes over none."""
    ours = value_of(results, OURS, measure)
    others = [result.name for result in results if not result.name.startswith("ours")]
    found = {f"ours_over_{name}": ours / value_of(results, name, measure) for name in others}
    if any(result.name == "ours-w2" for result in results):
        found["ours_w2_over_ours_w0"] = value_of(results, "ours-w2", measure) / ours
    return found
