"""Shards to raw traces."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wdsbench.options import option
from wdsbench.progress import Progress, no_progress

if TYPE_CHECKING:
    from wdsbench.pack.unpack import UnpackReport


@dataclass(frozen=True, kw_only=True)
class UnpackJob:
    """Options of :func:`unpack`."""

    data: Path = option(help="Folder of the data set.", metavar="DATASET", argument=True)
    out: Path = option(help="Folder of the trace files; one file per shard.")
    file_format: str = option("npz", "Format of the trace files: npz or pkl.", flag="--format")
    split: str | None = option(None, "Only this split: train, val or test [all].")


def unpack(job: UnpackJob, *, progress: Progress = no_progress) -> UnpackReport:
    """Write the traces of a data set as raw files, which :func:`wdsbench.jobs.pack` reads.

    Raises:
        ShardError: The data set is damaged.
        PackError: The folder cannot be used, or the disk is full.
    """
    from wdsbench.pack.unpack import unpack as unpack_shards

    return unpack_shards(
        job.data, job.out, file_format=job.file_format, split=job.split, progress=progress
    )
