"""Contents and checks of a data set or of raw traces, and repair of a damaged data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from wdsbench.cores import usable_cores
from wdsbench.images.files import is_image
from wdsbench.llm.options import ModelOptions
from wdsbench.options import option, part_of
from wdsbench.progress import Progress, no_progress

if TYPE_CHECKING:
    from wdsbench.llm.recompute import RecomputeReport
    from wdsbench.shards.check.repair import RepairReport
    from wdsbench.shards.check.verify import VerifyReport
    from wdsbench.shards.read.index import DatasetIndex
    from wdsbench.traces.verify import RawReport

    Checked: TypeAlias = VerifyReport | RawReport


_SOURCES = "Folder of a data set, tar files, or raw traces (paths or quoted patterns)."


@dataclass(frozen=True, kw_only=True)
class InspectJob:
    """Options of :func:`inspect`."""

    sources: tuple[str, ...] = option(
        help="Folder of a data set, tar files, raw traces or images (paths or quoted patterns).",
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

    The key ``kind`` is ``dataset``, ``image dataset``, ``sample``, ``raw``, ``raw sample`` or
    ``images``.

    Raises:
        ShardError, TraceError, ImageError: The data cannot be read.
        ValueError: There is no such sample.
    """
    from wdsbench.view import inspect as view
    from wdsbench.view import inspect_raw as raw_view

    sources = list(job.sources)
    if names_images(sources):
        from wdsbench.view.inspect_images import inspect_image_files

        return inspect_image_files(sources, progress=progress)
    if not _names_shards(sources):
        if job.sample is not None:
            return raw_view.inspect_raw_sample(sources, job.sample)
        return raw_view.inspect_raw(sources, progress=progress)
    index = _open_sources(sources)
    if job.sample is not None:
        return view.inspect_sample(index, job.sample)
    name = ", ".join(sources)
    return view.inspect_dataset(index, name, range_samples=job.ranges, seed=job.seed)


@dataclass(frozen=True, kw_only=True)
class VerifyJob(ModelOptions):
    """Options of :func:`verify`."""

    sources: tuple[str, ...] = option(help=_SOURCES, argument=True)
    fast: bool = option(False, "For a data set: check sizes, headers and the table only.")
    repair: bool = option(False, "For a data set: write its intact samples to --out.")
    out: Path | None = option(None, "For --repair: folder of the new data set.")
    recompute: int | None = option(
        None, "Also run this number of random traces through --model and compare."
    )
    model: str | None = option(None, "The model that made the traces.")
    layers: tuple[int, ...] | None = option(
        None, "Layers that were kept, as 0,15,31 [those that the traces name, else all]."
    )
    seed: int = option(0, "Seed of the choice of traces.")
    threads: int | None = option(None, "Shards checked in parallel [usable cores, at most 8].")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repair != (self.out is not None):
            raise ValueError(
                "--repair and --out must be given together; the damaged data set is not changed."
            )
        if (self.recompute is None) != (self.model is None):
            raise ValueError("--recompute N and --model M must be given together.")
        if self.recompute is not None and self.recompute < 1:
            raise ValueError(f"recompute is {self.recompute} traces; must be at least 1.")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"--threads is {self.threads}; must be at least 1.")
        if self.repair and (len(self.sources) > 1 or self.fast or self.recompute is not None):
            raise ValueError("--repair needs one data set, without --fast and --recompute.")


@dataclass(frozen=True)
class Verified:
    """Result of :func:`verify`."""

    kind: str  # ``dataset`` or ``raw``
    report: Checked
    recomputed: RecomputeReport | None = None  # None if not requested, or there are problems

    @property
    def sound(self) -> bool:
        """True if there is no problem and no deviation."""
        return self.report.sound and (self.recomputed is None or self.recomputed.sound)


def verify(job: VerifyJob, *, progress: Progress = no_progress) -> Verified | RepairReport:
    """Check shards against their index, or raw traces; or repair a data set.

    Raises:
        ShardError, TraceError: The data cannot be opened.
        ValueError: An option does not apply to this kind of data.
    """
    shards = _names_shards(job.sources)
    if job.out is not None:
        if not shards:
            raise ValueError("--repair needs one data set, without --fast and --recompute.")
        from wdsbench.shards.check.repair import repair_dataset

        return repair_dataset(Path(job.sources[0]), job.out, progress=progress)
    report = _checked(job, shards, progress)
    again = _recomputed(job, shards, progress) if report.sound and job.model else None
    return Verified("dataset" if shards else "raw", report, again)


def _checked(job: VerifyJob, shards: bool, progress: Progress) -> Checked:
    sources = list(job.sources)
    if not shards:
        from wdsbench.traces.verify import verify_raw

        if job.fast:
            raise ValueError("--fast needs a data set; raw traces have no index.")
        return verify_raw(sources, progress=progress)
    from wdsbench.shards.check.verify import verify_dataset, verify_tars
    from wdsbench.shards.read.open import tar_paths

    threads = job.threads or min(usable_cores(), 8)
    if Path(sources[0]).is_dir():
        return verify_dataset(Path(sources[0]), fast=job.fast, threads=threads, progress=progress)
    return verify_tars(tar_paths(sources), fast=job.fast, threads=threads, progress=progress)


def _recomputed(job: VerifyJob, shards: bool, progress: Progress) -> RecomputeReport:
    from wdsbench.llm.model import load_model
    from wdsbench.llm.recompute import recompute
    from wdsbench.llm.stored import pick_from_dataset, pick_from_raw

    assert job.model is not None
    assert job.recompute is not None
    if shards:
        traces = pick_from_dataset(_open_sources(job.sources), job.recompute, job.seed)
    else:
        traces = pick_from_raw(list(job.sources), job.recompute, job.seed)
    model, tokenizer = load_model(job.model, part_of(ModelOptions, job))
    return recompute(traces, model, tokenizer, layers=job.layers, progress=progress)


def _names_shards(sources: Sequence[str]) -> bool:
    """Return True for a data set or tar files, False for raw traces.

    A folder is a data set if it has an index, tar files, or the mark of an unfinished data set.
    """
    kinds = [source.endswith(".tar") or _is_dataset(source) for source in sources]
    if any(kinds) and not all(kinds):
        raise ValueError(f"{', '.join(sources)}: pass shards or raw traces, not both.")
    if all(kinds) and len(kinds) > 1 and any(map(_is_dataset, sources)):
        raise ValueError(f"{', '.join(sources)}: pass one data set at a time.")
    return all(kinds)


def names_images(sources: Sequence[str]) -> bool:
    """Return True if every source is an image, a pattern of images, or a folder that holds one."""
    return all(
        is_image(Path(source)) or any(map(is_image, Path(source).rglob("*")))
        for source in sources
        if not _is_dataset(source)
    ) and not any(map(_is_dataset, sources))


def _open_sources(sources: Sequence[str]) -> DatasetIndex:
    from wdsbench.shards.read.open import open_index

    return open_index(sources[0] if len(sources) == 1 else sources)


def _is_dataset(source: str) -> bool:
    folder = Path(source)
    if not folder.is_dir():
        return False
    names = ("index.json", ".wdsbench-unfinished")
    return any((folder / name).exists() for name in names) or any(folder.glob("*.tar"))
