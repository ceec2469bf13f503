"""A part of a scenario: its settings, its results and ratios, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch

from wdsbench.bench.data import Shape
from wdsbench.bench.timing import LEAST_EPOCHS, CaseResult, Work, interleaved
from wdsbench.loader import TraceLoader
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Batch

#: The figure of a result that a part reports.
Measure = Literal["gbps", "samples_per_s", "batches_per_s", "seconds", "memory_mb"]

#: Decode threads and torch threads, worker processes, samples of a shuffle buffer.
THREADS = 2
WORKERS = 2
SHUFFLE = 1000
LOADER_FACTS = {"threads": THREADS, "workers": WORKERS, "shuffle": SHUFFLE}

#: The case that "ours" refers to in a ratio: the loader on two decode threads.
OURS = "ours-t2"


@dataclass(frozen=True)
class Settings:
    """How to run a part."""

    data: Path  # folder for all data, one subfolder per data set
    repeats: int = 5  # figures are medians over them
    scale: float = 1.0  # share of the samples
    least_seconds: float = 0.5  # minimum duration of a repeat of a rate
    more_readers: bool = False  # include the readers that are left out by default
    progress: Progress = no_progress


@dataclass(frozen=True)
class Part:
    """A measured part."""

    name: str  # prefix of its cases and ratios in the JSON
    title: str  # one line that describes the data
    results: Sequence[CaseResult]  # the baseline first if there is one
    ratios: Mapping[str, float]  # by name, without the prefix
    measure: Measure = "gbps"  # the figure that tables and plots show
    unit: str = "float32 GB/s"  # of that figure
    baseline: str | None = None  # the case that others are compared with
    facts: Mapping[str, Any] = field(default_factory=dict)  # which the figures depend on
    notes: Sequence[str] = ()  # sentences printed below the table

    def value(self, name: str) -> float:
        """Return the reported figure of a case."""
        return value_of(self.results, name, self.measure)


def measured_rates(cases: Mapping[str, Callable[[], Work]], settings: Settings) -> list[CaseResult]:
    """Return the rates of running readers, with torch on `THREADS` threads."""
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


def loader_cases(
    shards: Path, batch_size: int, consume: Callable[[Iterable[Batch]], Work], **arguments: Any
) -> dict[str, Callable[[], Work]]:
    """Return the cases of the public iterator: one and two decode threads, two workers.

    ``consume`` iterates over one epoch; ``arguments`` are further ones of `TraceLoader`.
    """

    def case(threads: int, workers: int) -> Callable[[], Work]:
        loader = TraceLoader(
            shards,
            batch_size=batch_size,
            shuffle=SHUFFLE,
            threads=threads,
            num_workers=workers,
            **arguments,
        )
        return lambda: consume(loader)

    return {"ours-t1": case(1, 0), OURS: case(THREADS, 0), "ours-w2": case(1, WORKERS)}


def rates_part(
    shape: Shape,
    settings: Settings,
    cases: Mapping[str, Callable[[], Work]],
    title: str,
    *,
    name: str | None = None,
    measure: Measure = "gbps",
    unit: str = "float32 GB/s",
    baseline: str = "memcpy",
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> Part:
    """Measure the readers of a case and return the part, with `OURS` over each of them.

    ``title`` describes the data; the shape and the loader's settings are added to ``facts``.
    """
    name = name or shape.name
    results = measured_rates(cases, settings)
    return Part(
        name=name,
        title=f"{name}: {title}",
        results=results,
        ratios=rate_ratios(results, measure),
        measure=measure,
        unit=unit,
        baseline=baseline,
        facts={**asdict(shape), **facts, **LOADER_FACTS},
    )


def value_of(results: Sequence[CaseResult], name: str, measure: Measure) -> float:
    """Return one figure of one case; raise KeyError if it does not exist."""
    return float({result.name: getattr(result, measure) for result in results}[name])


def rate_ratios(results: Sequence[CaseResult], measure: Measure = "gbps") -> dict[str, float]:
    """Return the ratios of `OURS` to every other reader, and of worker processes to none."""
    ours = value_of(results, OURS, measure)
    others = [result.name for result in results if not result.name.startswith("ours")]
    found = {f"ours_over_{name}": ours / value_of(results, name, measure) for name in others}
    if any(result.name == "ours-w2" for result in results):
        found["ours_w2_over_ours_w0"] = value_of(results, "ours-w2", measure) / ours
    return found
