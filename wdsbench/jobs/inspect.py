"""Contents of a data set or of raw traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wdsbench.jobs.sources import names_shards, open_sources
from wdsbench.options import option
from wdsbench.progress import Progress, no_progress


@dataclass(frozen=True, kw_only=True)
class InspectJob:
    """Options of :func:`inspect`."""

    sources: tuple[str, ...] = option(
        help="Folder of a data set, tar files, or raw traces (paths or quoted patterns).",
        argument=True,
    )
    sample: str | None = option(None, "Show one sample: its member key or question id.")
    ranges: int = option(16, "For a data set: random samples whose value ranges are measured.")
    seed: int = option(0, "Seed of the choice of these samples.")

    def __post_init__(self) -> None:
        if self.ranges < 0:
            raise ValueError(f"--ranges is {self.ranges}; must be at least 0.")


def inspect(job: InspectJob, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Return keys, shapes, dtypes, sizes, ranges, token counts and classes as JSON values.

    The key ``kind`` is ``dataset``, ``sample``, ``raw`` or ``raw sample``.

    Raises:
        ShardError, TraceError: The data cannot be read.
        ValueError: There is no such sample.
    """
    from wdsbench.view import inspect as view
    from wdsbench.view import inspect_raw as raw_view

    sources = list(job.sources)
    if not names_shards(sources):
        if job.sample is not None:
            return raw_view.inspect_raw_sample(sources, job.sample)
        return raw_view.inspect_raw(sources, progress=progress)
    index = open_sources(sources)
    if job.sample is not None:
        return view.inspect_sample(index, job.sample)
    name = ", ".join(sources)
    return view.inspect_dataset(index, name, range_samples=job.ranges, seed=job.seed)
