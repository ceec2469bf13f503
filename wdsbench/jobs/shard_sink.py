"""An extraction straight into shards: each trace file is scored and packed once it is complete.

The extraction and the data set each have a journal. A trace file is removed only if finished shards
hold all of it and the extraction's journal allows the removal, so the run can be killed at any
moment and resumed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from wdsbench.errors import PackError, WdsbenchError
from wdsbench.llm.journal import JournalState, batch_file, read_journal
from wdsbench.llm.questions import Question, digest_of_references
from wdsbench.llm.score import join_parts, remove_parts, score_part
from wdsbench.pack import IncrementalPacker, PackOptions
from wdsbench.pack.resume import removed_files
from wdsbench.shards.format.index import INDEX_NAME, IndexFile, PackedFile
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.claim import FolderClaim
from wdsbench.shards.write.shard import JOURNAL_NAME as SHARDS_JOURNAL_NAME
from wdsbench.shards.write.shard import is_whole
from wdsbench.traces.scores import SCORES_NAME


class ShardSink(contextlib.AbstractContextManager["ShardSink"]):
    """Packs the trace files of an extraction (an ``llm.work.FileSink``); a context manager."""

    def __init__(
        self,
        shards: Path,
        out: Path,
        questions: Sequence[Question],
        options: PackOptions,
        *,
        keep_raw: bool = True,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Check that the data set can be written to ``shards`` from the extraction in ``out``.

        Traces are scored if all questions have references; labels come from the score column of
        ``options``.
        """
        # Relative to the traces, so that both folders can be moved.
        self.destination = os.path.relpath(shards.resolve(), out.resolve())
        self.index: IndexFile | None = None  # of the finished data set
        self._shards, self._out, self._questions = shards, out, questions
        self._options, self._keep_raw = options, keep_raw
        self._resume, self._overwrite = resume, overwrite
        self._scored = all(question.references for question in questions)
        self._parts: list[Path] = []
        self._packed: set[str] = set()
        self._packer: IncrementalPacker | None = None
        self._open = contextlib.ExitStack()
        self._journal = read_journal(out)
        self._check_folder()

    def __exit__(self, *_: object) -> None:
        """Close the data set; finished shards stay for a run that resumes."""
        self._open.close()

    def begin(self) -> None:
        """Open the data set."""
        journal = read_journal(self._out)  # read again: an old extraction may have been removed
        resumes = journal.removed or (self._shards / SHARDS_JOURNAL_NAME).exists()
        if journal.settings is None or not resumes:
            remove_parts(self._out)  # their references may differ
        if self.index is not None:
            # The run that wrote the index may have been killed before it released the folder.
            FolderClaim(self._shards).commit()
            return
        source = {"references": digest_of_references(self._questions)} if self._scored else {}
        self._packer = self._open.enter_context(
            IncrementalPacker(
                self._shards,
                self._options,
                source=source,
                removed=[path.name for path in _removable(self._out, journal) if not path.exists()],
                resume=self._resume,
                overwrite=self._overwrite,
            )
        )

    def on_file_written(self, path: Path) -> list[Path]:
        """Score and pack a trace file; return the files that may be removed."""
        if self._packer is None:
            if path.name not in self._packed:
                raise PackError(f"{self._shards} holds a data set without {path.name}")
            return [] if self._keep_raw or not path.exists() else [path]
        with self._explained(f"{path.name} is extracted, but not packed"):
            if self._scored:
                self._parts.append(score_part(path, self._questions))
            labelled = self._options.score_column is not None
            self._packer.add_file(path, self._parts[-1] if labelled else None)
            return [] if self._keep_raw else self._packer.finished_files()

    def finish(self) -> list[Path]:
        """Write the scores of all traces and the index; return the files that may be removed."""
        if self._packer is None:
            return []
        with self._explained("the extraction is finished, but the data set is not"):
            scores = None
            if self._scored:
                join_parts(self._parts, self._out / SCORES_NAME)
                if self._options.score_column is not None:
                    scores = self._out / SCORES_NAME
            self.index = self._packer.finish(scores).index
        return [] if self._keep_raw else self._packer.finished_files()

    def tidy(self) -> None:
        """Remove files that only a resumed run would need, after the extraction has returned."""
        remove_parts(self._out)

    def _check_folder(self) -> None:
        shards, ours = self._shards, self._journal.destination == self.destination
        if (shards / INDEX_NAME).exists():
            # The last run may have been killed after the index, before raw files were removed.
            index = DatasetIndex.open(shards).file if self._resume and ours else None
            if index is None or not _is_of(index, self._journal, self._options):
                raise ValueError(
                    f"--shards {shards} holds a data set already; choose another folder."
                )
            if not self._keep_raw:
                self._require_whole(index)
            self.index = index
            self._packed = {entry.file for entry in index.provenance.inputs}
        elif (shards / SHARDS_JOURNAL_NAME).exists():
            if not self._resume and not self._overwrite:
                raise ValueError(
                    f"--shards {shards} holds an unfinished data set; continue it with --resume,"
                    " replace it with --overwrite, or choose another folder."
                )
            finished = any(shards.glob("*.tar"))
            if not ours and (removed_files(shards) or (self._resume and finished)):
                raise ValueError(
                    f"--shards {shards} holds an unfinished data set of another extraction than"
                    f" {self._out}; pass --out of that one, remove it, or choose another folder."
                )

    def _require_whole(self, index: IndexFile) -> None:
        """Raise ValueError for a damaged shard: the trace files may be the only copy."""
        for shard in index.shardlist:
            if not is_whole(self._shards / shard.url, shard.model_dump()):
                raise ValueError(
                    f"--shards {self._shards}: {shard.url} is damaged or missing, so no trace file"
                    " is removed; restore it from a copy, or pack the trace files again."
                )

    @contextlib.contextmanager
    def _explained(self, state: str) -> Iterator[None]:
        """Add the state of the run and the remedy to an error."""
        try:
            yield
        except (WdsbenchError, OSError) as error:
            raise PackError(
                f"{state}: {error}; extracted and packed data is kept, and the same command with"
                " --resume continues"
            ) from error


def _removable(out: Path, journal: JournalState) -> list[Path]:
    """Return the paths of trace files whose removal a journal allowed."""
    form = "" if journal.settings is None else journal.settings["file_format"]
    return [out / batch_file(number, form) for number in sorted(journal.removed)]


def _is_of(index: IndexFile, journal: JournalState, options: PackOptions) -> bool:
    """Return True if a data set holds the files of a journal, packed with the options."""
    if journal.settings is None:
        return False
    form = journal.settings["file_format"]
    inputs = [
        PackedFile(file=batch_file(number, form), samples=traces)
        for number, traces in sorted(journal.files.items())
        if traces
    ]
    packed = index.provenance
    expected = {
        "inputs": inputs,
        "score_column": options.score_column,
        "threshold": options.threshold,
        "attention": list(options.attention),
        "edge_rule": options.edge_rule,
        "head_threshold": options.head_threshold,
    }
    return all(getattr(packed, name) == value for name, value in expected.items())
