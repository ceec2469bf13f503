"""Raw files to a data set as they come: each is packed when it is added, the index is written last.

    with Packing(Path("shards"), PackOptions(missing_score="keep")) as packing:
        for path in files_as_they_are_written():
            packing.add_file(path)
            for spent in packing.spent_files():
                spent.unlink()
        report = packing.finish()

The bytes are those that ``pack`` makes of the same files in the same order with the same options.
Killed, or left by an exception, the folder keeps what is finished; with ``resume`` the same files
are added again in the same order, and those that are packed already are passed over, be they still
there or not.

A file is spent when all its samples stand in shards that have their final name, are on the disk
and in the journal. Every split has its open shard, and the one that fills slowest decides: with
70/15/15 and shards of 256 MB the files of the last 256 / 0.15 MB of samples, about seven shards,
are not spent yet. That, whatever the size of the data set, is what raw files are kept of when spent
ones are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from wdsbench.errors import PackError, ScoreError
from wdsbench.files import sync_folder
from wdsbench.pack.labels import Judge, labels_entry, place_of
from wdsbench.pack.memory import freed_memory_kept
from wdsbench.pack.options import PackOptions
from wdsbench.pack.order import OrderJudge
from wdsbench.pack.prepare import Prepared, Preparer
from wdsbench.pack.resume import run_of
from wdsbench.pack.run import PackReport, PackRun
from wdsbench.records import Trace
from wdsbench.shards.format.names import split_of_question
from wdsbench.shards.write.journal import JOURNAL_NAME
from wdsbench.shards.write.writer import DatasetWriter
from wdsbench.traces.scores import read_scores


class Packing:
    """A data set that files are added to until it is finished; a context.

    Attributes:
        folder: The data set's.
    """

    def __init__(
        self,
        out: Path,
        options: PackOptions | None = None,
        *,
        source: Mapping[str, Any] | None = None,
        gone: Collection[str] = (),
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Prepare ``out``.

        Args:
            out: Made where it does not exist.
            options: How it is packed; ``reduce`` and ``split_by="file"``, which must know all
                files first, are not available.
            source: What else the files depend on, as JSON: a run is resumed only with the same.
            gone: Names of files that an earlier run packed and that were removed since, so far as
                the caller knows them too: finished shards must hold them before anything is begun.
            resume: Go on with an unfinished run of the same options; begins where there is none.
            overwrite: Throw an unfinished run away first.

        Raises:
            ValueError: ``options`` ask for what must know all files.
            PackError: The folder holds a data set, or an unfinished run that neither ``resume``
                nor ``overwrite`` says what to do with; one of other options; one that has lost a
                shard whose raw files were removed; or another process is writing there.
        """
        options = options or PackOptions()
        for name, value, allowed in (
            ("reduce", options.reduce, None),
            ("split_by", options.split_by, "question"),
        ):
            if value != allowed:
                raise ValueError(
                    f"{name}: {value!r} must know all files first; extract, then pack them at once"
                )
        self.folder = out
        if overwrite:
            DatasetWriter(out, shard_mb=options.shard_mb).abort()
        elif not resume and (out / JOURNAL_NAME).exists():
            raise PackError(
                f"{out} holds an unfinished run; go on with it with resume, throw it away with"
                " overwrite, or choose another folder"
            )
        self._options = options
        words = {**run_of(options, None, None), "source": dict(source or {})}
        # What is finished must stay, whatever happens: its raw files may be gone.
        judge = OrderJudge(Judge(None, options))
        self._run = PackRun.open(out, options, judge, words, resume=True, gone=gone)
        self._run.__enter__()
        self._added = 0
        self._held: dict[int, Path] = {}  # files that were not spent yet
        self._scored: bool | None = None
        self._whole = True

    def __enter__(self) -> Packing:
        """Return this."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of the folder; what is finished stays, and nothing where there is nothing."""
        if not self._added and not self._run.writer.finished:
            self._run.keep = False
        if not self._run.finished:
            self._held.clear()  # from now on nobody knows which shards are unfinished
        self._run.__exit__(kind, error, trace)

    def add_file(self, path: Path, scores: Path | None = None) -> None:
        """Pack the next raw file.

        Args:
            path: Resumed, it need not be there any more where it is packed already.
            scores: CSV with the scores of its traces; None: labels come from the files. One or the
                other for all files.

        Raises:
            TraceError: The file or a trace cannot be used.
            ScoreError: A bad score file, or a trace without a score.
            PackError: The disk is full; or, resumed, the file was changed or is gone.
            ValueError: Only some files come with scores.

        After an error there is nothing to do but to leave, and to resume.
        """
        self._require_whole()
        self._require_same_source(scores)
        number = self._added
        if path.exists():
            self._run.done.check_unchanged(number, path)
        elif not self._run.done.is_whole(number):
            raise PackError(
                f"{path} is gone, and {self.folder} does not hold all its traces; put it back"
            )
        table = None if scores is None else read_scores(scores, self._options.score_column)[0]
        preparer = Preparer(self._options, table)
        self._whole = False
        self._added += 1
        with freed_memory_kept():
            self._run.add(path, lambda: _prepared(preparer, path), _split_of)
        self._whole = True
        self._held[number] = path

    def spent_files(self) -> list[Path]:
        """Return the files that may be removed now, each once, and only those that are there.

        All their samples are safe. The folder then remembers that it has the only copy, and that
        such a file may be missing.

        Raises:
            PackError: The disk is full.
        """
        waiting = {note[0] for note in self._run.writer.unfinished_notes()}
        spent = {n: path for n, path in self._held.items() if n not in waiting}
        for number in spent:
            del self._held[number]
        there = {number: path for number, path in spent.items() if path.exists()}
        if there:
            sync_folder(self.folder)  # renames live in the folder
            removed = [[number, path.name] for number, path in there.items()]
            self._run.writer.remember({"removed": removed}, flush=True)
        return list(there.values())

    def finish(self, scores: Path | None = None) -> PackReport:
        """Write table and index: from here on it is a data set, and every file is spent.

        Args:
            scores: CSV with the scores of all files, for the index to name; None: labels came from
                the files.

        Raises:
            ScoreError: The score file cannot be used.
            PackError: There is no sample, the disk is full, or, resumed, files are missing.
            ValueError: The files came with scores and there is no such file, or the other way
                round.
        """
        self._require_whole()
        left = [number for number in self._run.done.rows if number >= self._added]
        if left:
            raise PackError(
                f"{self.folder} holds samples of {max(left) + 1} files, {self._added} were added;"
                " add all files of the run that is resumed, in the same order"
            )
        self._require_same_source(scores)
        column = None if scores is None else read_scores(scores, self._options.score_column)[1]
        return self._run.finish(labels_entry(scores, column, self._options.threshold), scores)

    def _require_whole(self) -> None:
        if not self._whole:
            raise PackError(f"{self.folder}: the last file is packed in part; leave, and resume")

    def _require_same_source(self, scores: Path | None) -> None:
        scored = scores is not None
        if self._scored not in (None, scored):
            raise ValueError("labels come from score files or from the traces; not from both")
        self._scored = scored


def _prepared(preparer: Preparer, path: Path) -> Iterator[Prepared]:
    for prepared in preparer.file(path):
        if prepared.waits:
            raise ScoreError(
                f"{place_of(prepared.trace)}: has no trace_number, and the score file has rows by"
                " trace, so all files must be known; give the traces a trace_number, or pack the"
                " files at once"
            )
        yield prepared


def _split_of(trace: Trace) -> str:
    return split_of_question(trace.question_id)
