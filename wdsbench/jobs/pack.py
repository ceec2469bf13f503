"""Raw traces to shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wdsbench.options import option, part_of
from wdsbench.pack.options import PackOptions
from wdsbench.progress import Progress, no_progress

if TYPE_CHECKING:
    from wdsbench.pack import PackReport


@dataclass(frozen=True, kw_only=True)
class PackJob(PackOptions):
    """Options of :func:`pack`."""

    traces: tuple[str, ...] = option(
        help="Raw trace files: a path or a quoted pattern; repeatable."
    )
    out: Path = option(help="Folder of the data set.")
    scores: Path | None = option(
        None,
        "CSV with question_id, a score and, where a question has several answers, trace; without"
        " it labels come from the files.",
    )
    workers: int = option(1, "Processes that read files; their number does not change the output.")
    append: bool = option(False, "Add the files to the data set in --out.")
    resume: bool = option(
        False, "Continue an interrupted run of the same command; a finished data set is kept."
    )


def pack(job: PackJob, *, progress: Progress = no_progress) -> PackReport:
    """Pack raw traces into a data set.

    Raises:
        TraceError: A file or trace cannot be used.
        ScoreError: The score file is damaged, or a trace has no score.
        PackError: The folder cannot be used, or the disk is full.
        ValueError: No file matches a pattern, or options contradict each other.
    """
    from wdsbench.pack import pack as pack_files

    return pack_files(
        job.traces,
        job.out,
        scores=job.scores,
        options=part_of(PackOptions, job),
        workers=job.workers,
        append=job.append,
        resume=job.resume,
        progress=progress,
    )
