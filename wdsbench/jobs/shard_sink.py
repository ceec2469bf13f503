"""From an extraction straight into shards: each trace file is scored and packed once it is whole.

The extraction keeps its journal, the data set keeps its own; here they are held together. A trace
file is removed only when the data set says that it is spent, and not before the extraction's
journal says that it may be gone; so the command can die at any moment, and goes on with
``--resume``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from wdsbench.errors import PackError, WdsbenchError
from wdsbench.llm.journal import JournalState, batch_file, read_journal
from wdsbench.llm.questions import Question
from wdsbench.llm.score_parts import digest_of_references, join_parts, remove_parts, score_part
from wdsbench.pack import IncrementalPacker, PackOptions
from wdsbench.pack.resume import removed_files
from wdsbench.shards.format.index import INDEX_NAME, IndexFile
from wdsbench.shards.format.provenance import PackedFile
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.claim import FolderClaim
from wdsbench.shards.write.journal import JOURNAL_NAME as SHARDS_JOURNAL_NAME
from wdsbench.shards.write.shard import is_whole
from wdsbench.traces.scores import SCORES_NAME


class ShardSink:
    """Takes the trace files of an extraction (``llm.work.FileSink``); a context.

    Attributes:
        destination: The shards' folder as seen from that of the traces, so that both can be moved.
        index: Of the data set, once it is whole.
    """

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
        """Check that the folder can be used.

        Args:
            shards: The data set's folder.
            out: The extraction's folder.
            questions: What is asked; where all have references, traces are scored.
            options: How they are packed; with a score column labels come from the scores.
            keep_raw: Whether trace files stay.
            resume: Whether the extraction goes on.
            overwrite: Whether it begins anew over an old one.

        Raises:
            ValueError: The folder holds a data set, or an unfinished one that is not this
                extraction's; or this one's, whole, with a shard that is not, and trace files are
                not to be kept.
        """
        self.destination = os.path.relpath(shards.resolve(), out.resolve())
        self.index: IndexFile | None = None
        self._shards, self._out, self._questions = shards, out, questions
        self._options, self._keep_raw = options, keep_raw
        self._resume, self._overwrite = resume, overwrite
        self._scored = all(question.references for question in questions)
        self._parts: list[Path] = []
        self._packed: set[str] = set()
        self._packing: IncrementalPacker | None = None
        self._journal = read_journal(out)
        self._check_folder()

    def __enter__(self) -> ShardSink:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the data set; finished shards are kept for a run that resumes."""
        if self._packing is not None:
            self._packing.close()

    def begin(self) -> None:
        """Open the data set."""
        journal = read_journal(self._out)  # anew: an old extraction may have been removed
        goes_on = journal.removed or (self._shards / SHARDS_JOURNAL_NAME).exists()
        if journal.settings is None or not goes_on:
            remove_parts(self._out)  # scores against references that may be others
        if self.index is not None:
            # The run that wrote it may have died before it let go of the folder.
            FolderClaim(self._shards).commit()
            return
        source = {"references": digest_of_references(self._questions)} if self._scored else {}
        self._packing = IncrementalPacker(
            self._shards,
            self._options,
            source=source,
            removed=[path.name for path in _removed_files(self._out, journal) if not path.exists()],
            resume=self._resume,
            overwrite=self._overwrite,
        )

    def on_file_written(self, path: Path) -> list[Path]:
        """Score and pack a file; return those that are spent.

        Raises:
            PackError: It cannot be; what is wrong, and what to do.
        """
        if self._packing is None:
            if path.name not in self._packed:
                raise PackError(f"{self._shards} holds a data set, without {path.name}")
            return [] if self._keep_raw or not path.exists() else [path]
        with self._told(f"{path.name} is extracted, but not packed"):
            if self._scored:
                self._parts.append(score_part(path, self._questions))
            labelled = self._options.score_column is not None
            self._packing.add_file(path, self._parts[-1] if labelled else None)
            return [] if self._keep_raw else self._packing.finished_files()

    def finish(self) -> list[Path]:
        """Write the scores of all traces and the index; return the files that are spent now.

        Raises:
            PackError: They cannot be written; what is wrong, and what to do.
        """
        if self._packing is None:
            return []
        with self._told("the extraction is finished, but the data set is not"):
            scores = None
            if self._scored:
                join_parts(self._parts, self._out / SCORES_NAME)
                if self._options.score_column is not None:
                    scores = self._out / SCORES_NAME
            self.index = self._packing.finish(scores).index
        return [] if self._keep_raw else self._packing.finished_files()

    def tidy(self) -> None:
        """Remove what only a run that goes on would need, once the extraction has returned."""
        remove_parts(self._out)

    def _check_folder(self) -> None:
        """Raise ValueError where what the folder holds is not this extraction's to go on with."""
        shards, ours = self._shards, self._journal.destination == self.destination
        if (shards / INDEX_NAME).exists():
            # The last run may have died after it was written, before its raw files were removed.
            index = DatasetIndex.open(shards).file if self._resume and ours else None
            if index is None or not _is_of(index, self._journal, self._options):
                raise ValueError(
                    f"--shards {shards} holds a data set already; choose another folder"
                )
            if not self._keep_raw:
                self._require_whole(index)
            self.index = index
            self._packed = {entry.file for entry in index.provenance.inputs}
        elif (shards / SHARDS_JOURNAL_NAME).exists():
            finished = any(shards.glob("*.tar"))
            if not self._resume and not self._overwrite:
                raise ValueError(
                    f"--shards {shards} holds an unfinished data set; go on with --resume, begin"
                    " anew with --overwrite, or choose another folder"
                )
            if not ours and (removed_files(shards) or (self._resume and finished)):
                raise ValueError(
                    f"--shards {shards} holds an unfinished data set of another extraction than"
                    f" {self._out}; give --out of that one, remove it, or choose another folder"
                )

    def _require_whole(self, index: IndexFile) -> None:
        """Raise ValueError where the trace files may be the only copy of what a shard held."""
        for shard in index.shardlist:
            if not is_whole(self._shards / shard.url, shard.model_dump()):
                raise ValueError(
                    f"--shards {self._shards}: {shard.url} is damaged or gone, so no trace file is"
                    " removed; put it back from a copy, or pack the trace files anew"
                )

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Say of an error what is done, what is not, and how to go on."""
        try:
            yield
        except (WdsbenchError, OSError) as error:
            raise PackError(
                f"{what}: {error}; what is extracted and packed stays, and the same command with"
                " --resume goes on there"
            ) from error


def _removed_files(out: Path, journal: JournalState) -> list[Path]:
    """Return where the trace files lay that a journal allowed to remove."""
    form = "" if journal.settings is None else journal.settings["file_format"]
    return [out / batch_file(number, form) for number in sorted(journal.removed)]


def _is_of(index: IndexFile, journal: JournalState, options: PackOptions) -> bool:
    """Return whether a data set holds the files of a journal, packed with the options."""
    if journal.settings is None:
        return False
    form = journal.settings["file_format"]
    inputs = [
        PackedFile(file=batch_file(number, form), samples=traces)
        for number, traces in sorted(journal.files.items())
        if traces
    ]
    packed = index.provenance
    asked = {
        "inputs": inputs,
        "score_column": options.score_column,
        "threshold": options.threshold,
        "attention": list(options.attention),
        "edge_rule": options.edge_rule,
        "head_threshold": options.head_threshold,
    }
    return all(getattr(packed, name) == value for name, value in asked.items())
