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

#: The case that "ours" refers to in a ratio: the loader on two decode threads.
OURS = "ours-t2"


@dataclass(frozen=True)
class Settings:
    """How to run a part.

    Attributes:
        data: Folder for all data, one subfolder per data set.
        repeats: Number of repeats; figures are medians over them.
        scale: Share of the samples.
        least_seconds: Minimum duration of a repeat of a rate.
        more_readers: True to include the readers that are left out by default.
        progress: Reports what is running.
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
        title: One line that describes the data.
        results: One result per case; the baseline first if there is one.
        ratios: Ratios by name, without the prefix.
        measure: The figure that tables and plots show.
        unit: Unit of that figure.
        baseline: The case that others are compared with, or None.
        facts: Parameters and observations that the figures depend on.
        notes: Sentences printed below the table.
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

    Args:
        shards: Folder of the data set.
        batch_size: Samples per batch.
        consume: Iterates over one epoch.
        arguments: Further arguments of `TraceLoader`.
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

    Args:
        shape: The case; its name is the part's unless ``name`` is given.
        settings: Of the run.
        cases: The readers by name, in the order of the table.
        title: Description of the data, without the name.
        name, measure, unit, baseline, facts: As in `Part`; the shape and the loader's settings are
            added to the facts.
    """
    name = name or shape.name
    results = measured_rates(cases, settings)
    common = {"threads": THREADS, "workers": WORKERS, "shuffle": SHUFFLE}
    return Part(
        name=name,
        title=f"{name}: {title}",
        results=results,
        ratios=rate_ratios(results, measure),
        measure=measure,
        unit=unit,
        baseline=baseline,
        facts={**asdict(shape), **facts, **common},
    )


def value_of(results: Sequence[CaseResult], name: str, measure: Measure) -> float:
    """Return one figure of one case.

    Raises:
        KeyError: The case does not exist or does not have this figure.
    """
    found = [getattr(result, measure) for result in results if result.name == name]
    if len(found) != 1 or found[0] is None:
        raise KeyError(f"{measure} of {name}")
    return float(found[0])


def rate_ratios(results: Sequence[CaseResult], measure: Measure = "gbps") -> dict[str, float]:
    """Return the ratios of `OURS` to every other reader, and of worker processes to none."""
    ours = value_of(results, OURS, measure)
    others = [result.name for result in results if not result.name.startswith("ours")]
    found = {f"ours_over_{name}": ours / value_of(results, name, measure) for name in others}
    if any(result.name == "ours-w2" for result in results):
        found["ours_w2_over_ours_w0"] = value_of(results, "ours-w2", measure) / ours
    return found
