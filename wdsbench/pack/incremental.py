"""Raw files into a data set while they are being produced: the index is written last.

    with IncrementalPacker(Path("shards"), PackOptions(missing_score="keep")) as packer:
        for path in files_as_they_are_written():
            packer.add_file(path)
            for finished in packer.finished_files():
                finished.unlink()
        report = packer.finish()

The bytes are those of ``pack`` for the same files in the same order with the same options. After a
kill or an exception the folder keeps the finished shards. With ``resume`` the same files are added
again in the same order; those that are packed are skipped, even if they no longer exist.

A file is finished when all its samples are in closed shards, on the disk and in the journal. The
split that fills slowest decides: with 70/15/15 and shards of 256 MB the files of the last
256 / 0.15 MB of samples, about seven shards, are not finished yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from wdsbench.errors import PackError, ScoreError
from wdsbench.files import sync_folder
from wdsbench.pack.labels import Labeller, NumberedLabeller, labels_entry, place_of
from wdsbench.pack.options import PackOptions
from wdsbench.pack.prepare import Prepared, Preparer, freed_memory_kept
from wdsbench.pack.resume import settings_of
from wdsbench.pack.run import PackReport, PackRun, open_writer
from wdsbench.pack.samples import SampleBuilder
from wdsbench.shards.format.names import split_of_question
from wdsbench.shards.write.shard import JOURNAL_NAME
from wdsbench.shards.write.writer import DatasetWriter
from wdsbench.traces.scores import ScoreTable, read_scores


class IncrementalPacker:
    """A data set in ``folder`` that files are added to until it is finished; a context."""

    def __init__(
        self,
        out: Path,
        options: PackOptions | None = None,
        *,
        source: Mapping[str, Any] | None = None,
        removed: Collection[str] = (),
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Open a new data set or an unfinished one.

        Args:
            options: Without ``reduce`` and ``split_by="file"``, which need all files at once.
            source: Further settings that the files depend on, as JSON; a run is resumed only with
                equal ones.
            removed: Names of files that were packed and removed; finished shards must hold them.
            resume: Continue an unfinished run with the same options, if there is one.
            overwrite: Remove an unfinished run first.

        Raises:
            ValueError: ``options`` need all files at once.
            PackError: The folder holds a data set, or an unfinished run that cannot be continued;
                or another process is writing there.
        """
        options = options or PackOptions()
        for name, expected in (("reduce", None), ("split_by", "question")):
            value = getattr(options, name)
            if value != expected:
                raise ValueError(
                    f"{name} is {value!r}, which needs all files at once; extract first, then pack"
                )
        self.folder = out
        if overwrite:
            DatasetWriter(out, shard_mb=options.shard_mb).abort()
        elif not resume and (out / JOURNAL_NAME).exists():
            raise PackError(
                f"{out} holds an unfinished run; continue it with resume, remove it with overwrite,"
                " or choose another folder"
            )
        self._options = options
        self._added = 0
        self._unfinished: dict[int, Path] = {}
        self._scored: bool | None = None
        self._failed = False
        samples = SampleBuilder(options, NumberedLabeller(Labeller(None, options)))
        settings = {**settings_of(options, None, None), "source": dict(source or {})}
        with contextlib.ExitStack() as stack:
            # Always resumable: the raw files of finished shards may have been removed.
            self._writer = stack.enter_context(
                open_writer(out, samples, settings, resume=True, removed=removed)
            )
            self._run = PackRun(self._writer, samples)
            self._open = stack.pop_all()

    def __enter__(self) -> IncrementalPacker:
        """Return the packer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the packer."""
        self.close()

    def close(self) -> None:
        """Close the data set; finished shards are kept, and nothing if no file was added."""
        if not self._added and not self._writer.finished:
            self._writer.keep = False
        if not self._run.finished:
            self._unfinished.clear()  # which shards are on the disk is not known after this
        self._open.close()

    def add_file(self, path: Path, scores: Path | None = None) -> None:
        """Pack the next file. After an exception the packer can only be closed.

        Args:
            path: It need not exist if an earlier run has packed it.
            scores: CSV with the scores of its traces, for all files or none; None: labels come from
                the files.

        Raises:
            TraceError: The file or a trace cannot be used.
            ScoreError: The score file is damaged, or a trace has no score.
            PackError: The disk is full; or the file was changed or removed since the earlier run.
            ValueError: Only some files have scores.
        """
        self._require_usable()
        self._require_same_source(scores)
        number = self._added
        if path.exists():
            self._run.earlier.check_unchanged(number, path)
        elif not self._run.earlier.is_finished(number):
            raise PackError(
                f"{path} does not exist, and {self.folder} does not hold all its traces; restore it"
            )
        table = None if scores is None else self._read(scores)[0]
        preparer = Preparer(self._options, table)
        self._failed = True
        self._added += 1
        with freed_memory_kept():
            self._run.add(
                path,
                lambda: _prepared(preparer, path),
                lambda trace: split_of_question(trace.question_id),
            )
        self._failed = False
        self._unfinished[number] = path

    def finished_files(self) -> list[Path]:
        """Return the existing files that may be removed now, each once; PackError if the disk is
        full.

        The folder records that it holds the only copy and that such a file may be missing.
        """
        pending = {note[0] for note in self._writer.pending_notes()}
        finished = {n: path for n, path in self._unfinished.items() if n not in pending}
        for number in finished:
            del self._unfinished[number]
        existing = {number: path for number, path in finished.items() if path.exists()}
        if existing:
            sync_folder(self.folder)  # the shards' names must be on the disk before files go
            removed = [[number, path.name] for number, path in existing.items()]
            self._writer.add_record({"removed": removed}, flush=True)
        return list(existing.values())

    def finish(self, scores: Path | None = None) -> PackReport:
        """Write table and index; afterwards every file is finished.

        ``scores`` is the CSV with the scores of all files, for the index to name.

        Raises:
            ScoreError: The score file cannot be used.
            PackError: There is no sample, the disk is full, or files of the resumed run are
                missing.
            ValueError: ``scores`` is given but the files had none, or the reverse.
        """
        self._require_usable()
        missing = [number for number in self._run.earlier.rows if number >= self._added]
        if missing:
            raise PackError(
                f"{self.folder} holds samples of {max(missing) + 1} files, {self._added} were"
                " added; add all files of the run that is resumed, in the same order"
            )
        self._require_same_source(scores)
        column = None if scores is None else self._read(scores)[1]
        return self._run.finish(labels_entry(scores, column, self._options.threshold), scores)

    def _read(self, scores: Path) -> tuple[ScoreTable, str]:
        return read_scores(scores, self._options.score_column, self._options.group)

    def _require_usable(self) -> None:
        if self._failed:
            raise PackError(f"{self.folder}: the last file is packed in part; close, and resume")

    def _require_same_source(self, scores: Path | None) -> None:
        scored = scores is not None
        if self._scored not in (None, scored):
            raise ValueError("labels come from score files or from the traces, not from both")
        self._scored = scored


def _prepared(preparer: Preparer, path: Path) -> Iterator[Prepared]:
    for prepared in preparer.file(path):
        if prepared.needs_number:
            raise ScoreError(
                f"{place_of(prepared.trace)}: has no trace_number, and the score file has rows by"
                " trace, which needs all files at once; give the traces a trace_number, or pack"
                " the finished files"
            )
        yield prepared
