"""The full check of a data set: every problem is collected, with shard, member and byte.

It proves that index and table agree (module ``index_check``); that every byte of every shard is a
header as written, a member with its hash, padding or the end (module ``shard_check``); and that
every member has valid contents (module ``contents``). Files that killed runs left are notes, not
problems. Of tar files without an index, structure and members are checked, but no hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wdsbench.errors import ShardError
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.check.arrays import LayerStats
from wdsbench.shards.check.index_check import (
    layer_problems,
    leftovers,
    reduction_problems,
    sample_problems,
    shape_problems,
    table_problems,
    unknown_files,
)
from wdsbench.shards.check.problems import Problem, problem_of
from wdsbench.shards.check.shard_check import ShardCheck
from wdsbench.shards.format.index import INDEX_NAME, IndexFile, ShardEntry
from wdsbench.shards.format.tar import hash_file
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.plain import index_tars


@dataclass
class VerifyReport:
    """Result of a check: problems in the order of shards, notes about other things, and counts.

    ``damaged_samples`` have a problem of their own, or are in a shard that cannot be opened.
    """

    source: str
    fast: bool
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shards: int = 0
    samples: int = 0
    damaged_samples: int = 0
    bytes_read: int = 0

    def add(self, shard: ShardCheck) -> None:
        self.problems += shard.problems
        self.damaged_samples += shard.damaged_samples
        self.bytes_read += shard.bytes_read

    @property
    def sound(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {"source": self.source, "sound": self.sound, **asdict(self)}


def verify_dataset(
    folder: Path, *, fast: bool = False, threads: int = 2, progress: Progress = no_progress
) -> VerifyReport:
    """Check a data set and return every problem.

    With ``fast`` only sizes, headers and the table are checked. Each of the ``threads`` checks one
    shard and holds one sample in memory.
    """
    report = VerifyReport(str(folder), fast)
    report.notes += leftovers(folder)
    try:
        index = DatasetIndex.open(folder)
    except ShardError as error:
        report.problems.append(problem_of(error, "index"))
    else:
        report.problems += shape_problems(index)
    if report.problems:
        _verify_without_table(folder, report, threads, progress)
        return report
    report.shards, report.samples = len(index.file.shardlist), len(index)
    report.problems += table_problems(index)
    stats = _check_shards(index, report, threads, progress)
    if not fast:
        complete = report.damaged_samples == 0
        report.problems += layer_problems(index.file, stats, complete=complete)
    report.problems += reduction_problems(index)
    report.notes += unknown_files(index)
    return report


def verify_tars(
    paths: Sequence[Path], *, fast: bool = False, threads: int = 2, progress: Progress = no_progress
) -> VerifyReport:
    """Check structure, members and values of tar files without an index, like `verify_dataset`."""
    source = str(paths[0]) if len(paths) == 1 else f"{len(paths)} tar files"
    report = VerifyReport(source, fast)
    report.notes.append("no index: hashes, labels and lost samples cannot be checked")
    _verify_tars(paths, report, threads, progress)
    return report


def _check_shards(
    index: DatasetIndex, report: VerifyReport, threads: int, progress: Progress
) -> LayerStats:
    def check(number: int) -> ShardCheck:
        return ShardCheck(index, number, fast=report.fast).run()

    stats = LayerStats.zeros(index.num_layers)
    numbers = range(len(index.file.shardlist))
    for shard in _on_threads(check, numbers, threads, progress):
        report.add(shard)
        stats.add(shard.stats)
    return stats


def _on_threads(
    check: Callable[[Any], Any], items: Sequence[Any], threads: int, progress: Progress
) -> Iterator[Any]:
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
    """Check the shards alone if the index or its table cannot be used."""
    entries: list[ShardEntry] = []
    try:
        file = IndexFile.model_validate_json((folder / INDEX_NAME).read_bytes())
        entries = file.shardlist
        paths = [folder / Path(entry.url).name for entry in entries]
    except (OSError, ValueError):
        paths = sorted(folder.glob("*.tar"))
    if not paths:
        return
    note = "the table cannot be used: shards were checked as tar files without an index"
    report.notes.append(note)
    before = len(report.problems)
    _verify_tars([path for path in paths if path.is_file()], report, threads, progress)
    known = {problem.shard for problem in report.problems[before:]}
    for entry, path in zip(entries, paths, strict=False):
        if not path.is_file():
            report.problems.append(Problem("missing", "the shard does not exist", entry.url))
            continue
        size = path.stat().st_size
        if size != entry.filesize:
            detail = f"{size} bytes, the index says {entry.filesize}"
            end = min(size, entry.filesize)
            report.problems.append(Problem("size", detail, entry.url, offset_bytes=end))
        elif not report.fast and entry.url not in known and hash_file(path) != entry.xxh3:
            detail = "XXH3 of the shard is not what the index says"
            report.problems.append(Problem("hash", detail, entry.url))


def _verify_tars(
    paths: Sequence[Path], report: VerifyReport, threads: int, progress: Progress
) -> None:
    """Check each tar file, then splits and keys over all of them."""

    def check(path: Path) -> tuple[int, ShardCheck | Problem]:
        try:
            index = index_tars([path])
        except ShardError as error:
            return 0, problem_of(error, "tar")
        return len(index), ShardCheck(index, 0, fast=report.fast).run()

    opened: list[Path] = []
    results = _on_threads(check, paths, threads, progress)
    for path, (count, found) in zip(paths, results, strict=True):
        report.shards += 1
        report.samples += count
        if isinstance(found, Problem):
            report.problems.append(found)
        else:
            report.add(found)
            opened.append(path)
    if len(opened) > 1:
        try:
            report.problems += sample_problems(index_tars(opened))
        except ShardError as error:
            report.problems.append(problem_of(error, "split"))
