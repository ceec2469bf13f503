"""The full check of a data set: every problem is collected, with shard, member and byte.

What is proved: ``index.json`` parses; the table is the one it names (size, XXH3) and its columns
agree with it and with each other; keys are those of question and trace, and none comes twice; no
question stands in two splits; every shard is there, has its size, and every byte of it is a header
as written, a member with its hash, padding or the end; every member holds what it must (module
``contents``). Leftovers of runs that were killed are notes, not problems.

Shards are checked on threads, each of which holds one sample in memory. Tar files without an index
are checked as far as they speak for themselves: their structure and their members, but no hashes.
"""

from __future__ import annotations

import fcntl
import glob
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import xxhash
from braceexpand import braceexpand

from wdsbench.errors import ShardError
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.check.hygiene import check_split_hygiene
from wdsbench.shards.check.problems import Problem, problem_of
from wdsbench.shards.check.shard_check import ShardCheck, hash_file
from wdsbench.shards.check.states import LayerStats
from wdsbench.shards.check.table_check import duplicates, shape_problems, table_problems
from wdsbench.shards.format.index import INDEX_NAME, IndexFile, ShardEntry
from wdsbench.shards.format.table import is_table_name
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.plain import index_tars
from wdsbench.shards.write.claim import MARKER_NAME

_REDUCTION: Final = re.compile(r"reduction-([0-9a-f]{16})\.safetensors")


#: Stored states may lie this much above the largest state that was packed: half of the last of 11
#: binary digits, and the smallest step of float16.
_ROUNDING: Final = 2.0**-11
_SMALLEST_STEP: Final = 2.0**-24


@dataclass
class VerifyReport:
    """What was found.

    Attributes:
        source: What was verified.
        fast: Whether only sizes and headers were looked at.
        shards: Shards that the index names.
        samples: Samples in them.
        damaged_samples: Samples with a problem of their own, or in a shard that cannot be opened.
        bytes_read: Of shards.
        problems: All of them, shards in order.
        notes: What is worth knowing and no problem.
    """

    source: str
    fast: bool
    shards: int = 0
    samples: int = 0
    damaged_samples: int = 0
    bytes_read: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return plain values by name."""
        return {
            "source": self.source,
            "sound": self.sound,
            "fast": self.fast,
            "shards": self.shards,
            "samples": self.samples,
            "damaged_samples": self.damaged_samples,
            "bytes_read": self.bytes_read,
            "problems": [problem.as_json() for problem in self.problems],
            "notes": self.notes,
        }


def verify_dataset(
    folder: Path, *, fast: bool = False, threads: int = 2, progress: Progress = no_progress
) -> VerifyReport:
    """Check a data set and return every problem.

    Args:
        folder: The data set's.
        fast: Only sizes, headers and the table: payloads are not read.
        threads: Shards at a time; each holds one sample in memory.
        progress: Draws over shards.
    """
    report = VerifyReport(str(folder), fast)
    report.notes += _leftovers(folder)
    try:
        index = DatasetIndex.open(folder)
    except ShardError as error:
        report.problems.append(problem_of(error, "index"))
        _verify_without_table(folder, report, threads, progress)
        return report
    misshapen = list(shape_problems(index))
    if misshapen:
        report.problems += misshapen
        _verify_without_table(folder, report, threads, progress)
        return report
    report.shards, report.samples = len(index.file.shardlist), len(index)
    report.problems += table_problems(index)
    seen = _check_shards(index, report, threads, progress)
    if not fast:
        whole = report.damaged_samples == 0
        report.problems += _layer_problems(index.file, seen, whole=whole)
    report.problems += _file_problems(index)
    report.notes += _unknown_files(index)
    return report


def verify_tars(
    paths: Sequence[Path],
    *,
    fast: bool = False,
    threads: int = 2,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Check tar files without an index: structure, members, values; there are no hashes.

    Args:
        paths: Tar files.
        fast: Only headers.
        threads: Shards at a time.
        progress: Draws over shards.
    """
    source = str(paths[0]) if len(paths) == 1 else f"{len(paths)} tar files"
    report = VerifyReport(source, fast)
    report.notes.append("no index: hashes, labels and lost samples cannot be checked")
    _verify_tars(paths, report, threads, progress)
    return report


def tar_paths(patterns: Sequence[str]) -> list[Path]:
    """Return the tar files that patterns with braces or stars name, each once.

    Raises:
        ShardError: A pattern matches nothing.
    """
    paths: list[Path] = []
    for pattern in patterns:
        for one in braceexpand(pattern):
            stars = any(sign in one for sign in "*?[") and not Path(one).exists()
            found = [Path(match) for match in sorted(glob.glob(one))] if stars else [Path(one)]  # noqa: PTH207
            if not found or not all(path.is_file() for path in found):
                raise ShardError("no such tar file", shard=one)
            paths += found
    return list(dict.fromkeys(paths))


def _check_shards(
    index: DatasetIndex, report: VerifyReport, threads: int, progress: Progress
) -> LayerStats:
    """Check all shards into the report; return what their states are like."""

    def check(number: int) -> tuple[ShardCheck, list[Problem], int]:
        shard = ShardCheck(index, number, fast=report.fast)
        problems: list[Problem] = []
        damaged = 0
        for sample in shard.samples():
            problems += sample.problems
            damaged += bool(sample.lost or sample.problems)
        return shard, problems, damaged

    seen = LayerStats.zeros(index.num_layers)
    numbers = range(len(index.file.shardlist))
    for shard, problems, damaged in _on_threads(check, numbers, threads, progress):
        report.problems += shard.problems + problems
        report.damaged_samples += damaged
        report.bytes_read += shard.bytes_read
        seen.add(shard.seen)
    return seen


def _on_threads(
    check: Callable[[Any], Any], items: Sequence[Any], threads: int, progress: Progress
) -> Iterator[Any]:
    """Yield ``check(item)`` in the order of the items."""
    with ThreadPoolExecutor(max(1, threads)) as pool:
        runs = [pool.submit(check, item) for item in items]
        try:
            yield from progress((run.result() for run in runs), len(runs), "verifying")
        finally:
            for run in runs:
                run.cancel()


def _verify_without_table(
    folder: Path, report: VerifyReport, threads: int, progress: Progress
) -> None:
    """Check what can be checked where the index or its table cannot be used."""
    entries: list[ShardEntry] = []
    try:
        file = IndexFile.model_validate_json((folder / INDEX_NAME).read_bytes())
        entries = file.shardlist
        paths = [folder / Path(entry.url).name for entry in entries]
    except (OSError, ValueError):
        paths = sorted(folder.glob("*.tar"))
    if not paths:
        return
    report.notes.append(
        "the table cannot be used: shards were checked as tar files without an index"
    )
    before = len(report.problems)
    _verify_tars([path for path in paths if path.is_file()], report, threads, progress)
    known = {problem.shard for problem in report.problems[before:]}
    for entry, path in zip(entries, paths, strict=False):
        if not path.is_file():
            report.problems.append(Problem("missing", "the shard is not there", entry.url))
            continue
        size = path.stat().st_size
        if size != entry.filesize:
            detail = f"{size} bytes, the index says {entry.filesize}"
            report.problems.append(
                Problem("size", detail, entry.url, offset_bytes=min(size, entry.filesize))
            )
        elif not report.fast and entry.url not in known and hash_file(path) != entry.xxh3:
            report.problems.append(
                Problem("hash", "XXH3 of the shard is not what the index says", entry.url)
            )


def _verify_tars(
    paths: Sequence[Path], report: VerifyReport, threads: int, progress: Progress
) -> None:
    """Check each tar on its own, then what all have in common."""

    def check(path: Path) -> tuple[int, int, int, list[Problem]]:
        try:
            index = index_tars([path])
        except ShardError as error:
            return 0, 0, 0, [problem_of(error, "tar")]
        shard = ShardCheck(index, 0, fast=report.fast)
        samples = [(sample.problems, sample.lost) for sample in shard.samples()]
        problems = [problem for found, _ in samples for problem in found]
        damaged = sum(bool(found or lost) for found, lost in samples)
        return len(index), damaged, shard.bytes_read, shard.problems + problems

    opened: list[Path] = []
    for path, (count, damaged, size, problems) in zip(
        paths, _on_threads(check, paths, threads, progress), strict=True
    ):
        report.shards += 1
        report.samples += count
        report.damaged_samples += damaged
        report.bytes_read += size
        report.problems += problems
        if count:
            opened.append(path)
    if len(opened) > 1:
        try:
            index = index_tars(opened)
            check_split_hygiene(index)
            report.problems += duplicates(index)
        except ShardError as error:
            report.problems.append(problem_of(error, "split"))


def _layer_problems(file: IndexFile, seen: LayerStats, *, whole: bool) -> Iterator[Problem]:
    """Yield layers whose states are not as the index says.

    Args:
        file: The index.
        seen: Of all samples that could be read.
        whole: Whether that was all samples.
    """
    for layer, entry in enumerate(file.layers[: len(seen.infinities)]):
        for what, found, told in (
            ("infinities", int(seen.infinities[layer]), entry.infinities),
            ("scaled samples", int(seen.scaled[layer]), entry.scaled_samples),
        ):
            if found > told or (whole and found < told):
                detail = f"layer {layer}: {found} {what}, the index says {told}"
                yield Problem("value", detail, INDEX_NAME)
        bound = entry.max_abs * (1 + _ROUNDING) + _SMALLEST_STEP
        if seen.max_abs[layer] > bound:
            detail = (
                f"layer {layer} reaches {seen.max_abs[layer]:g}, the index says {entry.max_abs:g}"
            )
            yield Problem("value", detail, INDEX_NAME)
    if file.layers and len(file.layers) != len(seen.infinities):
        detail = f"{len(file.layers)} entries of layers, the states have {len(seen.infinities)}"
        yield Problem("index", detail, INDEX_NAME)


def _file_problems(index: DatasetIndex) -> Iterator[Problem]:
    """Yield files beside the shards that are not what their name says."""
    name = index.file.provenance.reduction
    if name is None:
        return
    match = _REDUCTION.fullmatch(name)
    try:
        data = (index.folder / name).read_bytes() if match else b""
    except OSError as error:
        yield Problem("missing", f"cannot be read: {error.strerror}", name)
        return
    if match is None or xxhash.xxh3_64_hexdigest(data) != match.group(1):
        yield Problem("hash", "XXH3 is not the one in its name", name)


def _leftovers(folder: Path) -> Iterable[str]:
    """Yield what a run that was killed, or is running, has left."""
    marker = folder / MARKER_NAME
    if marker.is_file():
        with marker.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                yield f"{MARKER_NAME}: a run was killed here; the next pack or relabel clears it"
            except OSError:
                yield f"{MARKER_NAME}: a run is writing here now; verify again when it has ended"
    for path in sorted(folder.glob(".*.tmp")):
        yield f"{path.name}: an unfinished file of a killed run; it can be removed"


def _unknown_files(index: DatasetIndex) -> Iterator[str]:
    """Yield shards and tables that the index does not name."""
    shards = {entry.url for entry in index.file.shardlist}
    for path in sorted(index.folder.iterdir()):
        if path.suffix == ".tar" and path.name not in shards:
            yield f"{path.name}: the index names no such shard; nobody reads it"
        elif is_table_name(path.name) and path.name != index.file.table.file:
            yield f"{path.name}: a table that the index does not name; it can be removed"
