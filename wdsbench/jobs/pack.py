"""Raw traces or images to shards and back, and other labels for shards."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from wdsbench.options import option, part_of
from wdsbench.pack.image_samples import ImageOptions
from wdsbench.pack.options import PackOptions
from wdsbench.progress import Progress, no_progress

if TYPE_CHECKING:
    from wdsbench.pack import PackReport
    from wdsbench.pack.images import ImagePackReport
    from wdsbench.pack.relabel import RelabelReport
    from wdsbench.pack.unpack import UnpackReport


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """Sources of `pack`: the last base of `PackJob`, so that its help begins with them."""

    traces: tuple[str, ...] = option((), "Raw trace files: a path or a quoted pattern; repeatable.")
    images: str | None = option(
        None, "Images (TIFF, PNG, JPEG) in place of traces: a folder or a quoted pattern."
    )


@dataclass(frozen=True, kw_only=True)
class PackJob(ImageOptions, PackOptions, _Sources):
    """Options of :func:`pack`; those of traces and those of images exclude each other."""

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

    def __post_init__(self) -> None:
        """Raise ValueError for options that contradict each other."""
        if bool(self.traces) == (self.images is not None):
            raise ValueError("pack needs --traces or --images, and not both.")
        common = ("out", "workers", "shard_mb", "threads", "traces", "images")
        of_images = [each.name for each in fields(ImageOptions)]
        for each in fields(self):
            foreign = (each.name in of_images) == (self.images is None)
            if each.name not in common and foreign and getattr(self, each.name) != each.default:
                flag = each.metadata.get("flag") or f"--{each.name.replace('_', '-')}"
                kind, other = ("--traces", "--images")[:: 1 if self.images is None else -1]
                raise ValueError(f"{flag} is an option of {other}; leave it out with {kind}.")
        if self.images is not None:
            self.check()
        else:
            PackOptions.__post_init__(self)


def pack(job: PackJob, *, progress: Progress = no_progress) -> PackReport | ImagePackReport:
    """Pack raw traces, or images, into a data set.

    Raises:
        TraceError, ImageError: A file or trace cannot be used.
        ScoreError: The score file is damaged, or a trace has no score.
        PackError: The folder cannot be used, or the disk is full.
        ValueError: No file matches a pattern, or options contradict each other.
    """
    if job.images is not None:
        from wdsbench.pack.images import pack_images

        return pack_images(
            job.images,
            job.out,
            part_of(ImageOptions, job),
            shard_mb=job.shard_mb,
            workers=job.workers,
            progress=progress,
        )
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


@dataclass(frozen=True, kw_only=True)
class UnpackJob:
    """Options of :func:`unpack`."""

    data: Path = option(help="Folder of the data set.", metavar="DATASET", argument=True)
    out: Path = option(
        help="Folder of the files: one per shard of traces, one per image or patch of images."
    )
    file_format: str | None = option(
        None, "Format of the files: npz or pkl; tif of images [npz, tif].", flag="--format"
    )
    split: str | None = option(None, "Only this split: train, val or test [all].")


def unpack(job: UnpackJob, *, progress: Progress = no_progress) -> UnpackReport:
    """Write the traces of a data set as raw files, which :func:`wdsbench.jobs.pack` reads, or its
    images as TIFF files.

    Raises:
        ShardError: The data set is damaged.
        PackError: The folder cannot be used, or the disk is full.
    """
    from wdsbench.pack.unpack import unpack as unpack_shards

    return unpack_shards(
        job.data, job.out, file_format=job.file_format, split=job.split, progress=progress
    )


@dataclass(frozen=True, kw_only=True)
class RelabelJob:
    """Options of :func:`relabel`."""

    shards: Path = option(help="Folder of the data set.", argument=True)
    scores: Path = option(
        help="CSV with question_id, a score and, where a question has several answers, trace: the"
        " number in the data set."
    )
    score_column: str | None = option(
        None, "Column of the score [bleurt_score, or the only one apart from trace and abstained]."
    )
    threshold: float = option(0.5, "A sample with a score below it is hallucinated (label 1).")
    missing_score: str = option("error", "Sample without a score: error or keep.")


def relabel(job: RelabelJob) -> RelabelReport:
    """Give a packed data set labels from other scores; its shards are not changed.

    Raises:
        ScoreError: The score file is damaged, or a sample has no score.
        ShardError: The data set is damaged.
    """
    from wdsbench.pack.relabel import relabel as relabel_dataset

    return relabel_dataset(
        job.shards,
        job.scores,
        score_column=job.score_column,
        threshold=job.threshold,
        missing_score=job.missing_score,
    )
