"""The journal of an extraction, by which an interrupted run is resumed.

``journal.jsonl`` in the folder of the traces, one JSON object a line, each flushed to the disk
before the next batch begins:

    {"journal": 1, "settings": {...}}                     settings that determine the content
    {"batch": 0, "file": 1, "part_bytes": 81920, "traces": [[place, "q1", 0], ...],
     "failed": [[place, "q7", 0, "reason"], ...], "counts": {"tokens": 912, ...}}
    {"file": 1, "traces": 500}                            the file is complete
    {"taker": "../shards"}                                destination of complete files
    {"removed": [1, 2]}                                   files that may be removed

``.batch_0001.part`` holds the finished traces of the current file: one pickle for each batch,
appended and flushed before the line of the batch. An incomplete line is ignored together with the
rest of the part: that batch is repeated, so that the files have the same bytes.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from wdsbench.files import atomic_file, sync_folder
from wdsbench.jsonlines import JsonLinesError, JsonLinesWriter, read_json_lines
from wdsbench.traces.files import FAILURES_NAME, JOURNAL_NAME
from wdsbench.traces.unpickle import load_pickle

BATCH_FILES: Final = "batch_[0-9]*.*"
LEFTOVERS: Final = ".batch_[0-9]*"
_FORMAT: Final = 1
_PROTOCOL: Final = 4


def batch_file(number: int, file_format: str) -> str:
    """Return the name of the ``number``-th trace file, from 1."""
    return f"batch_{number:04d}.{file_format}"


@dataclass(frozen=True)
class Failure:
    """A question that gave no trace, with the error."""

    place: int  # among all asks
    question_id: str
    trace_number: int
    reason: str


@dataclass(frozen=True)
class BatchRecord:
    """Result of one batch."""

    batch: int
    file: int  # number of its trace file, from 1
    traces: list[tuple[int, str, int]]  # (place, question id, trace number)
    failed: list[Failure]
    counts: dict[str, int]  # sums over the traces


@dataclass
class JournalState:
    """Content of a journal."""

    settings: dict[str, Any] | None = None  # settings of the run; None if there is no journal
    batches: dict[int, BatchRecord] = field(default_factory=dict)  # finished batches by number
    # Number of traces of every complete file, by its number.
    files: dict[int, int] = field(default_factory=dict)
    part_bytes: dict[int, int] = field(default_factory=dict)  # valid length of each file's part
    destination: str | None = None  # ``FileSink.destination`` of complete files
    removed: set[int] = field(default_factory=set)  # complete files that may have been removed
    size_bytes: int = 0  # valid length of the journal


def read_journal(folder: Path) -> JournalState:
    """Return the content of the journal in ``folder``, empty if there is none."""
    state = JournalState()
    path = folder / JOURNAL_NAME
    try:
        records, state.size_bytes = read_json_lines(path)
    except JsonLinesError as error:
        raise ValueError(f"{error}; extract again with overwrite.") from error
    for number, record in enumerate(records, start=1):
        try:
            _apply(state, record)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: not a line of a journal ({error}); extract again with"
                " overwrite."
            ) from error
    return state


def _apply(state: JournalState, line: dict[str, Any]) -> None:
    if "journal" in line:
        if line["journal"] != _FORMAT:
            raise ValueError(f"format {line['journal']}, this version writes {_FORMAT}")
        state.settings = line["settings"]
    elif "batch" in line:
        record = BatchRecord(
            line["batch"],
            line["file"],
            [(place, name, trace) for place, name, trace in line["traces"]],
            [Failure(*entry) for entry in line["failed"]],
            line["counts"],
        )
        state.batches[record.batch] = record
        state.part_bytes[record.file] = line["part_bytes"]
    elif "taker" in line:
        state.destination = line["taker"]
    elif "removed" in line:
        state.removed.update(line["removed"])
    else:
        state.files[line["file"]] = line["traces"]


class Journal:
    """Writes the journal of one run in ``folder`` and the part of the current file.

    ``state`` is that of an earlier run with the same settings (:func:`read_journal`).
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], state: JournalState) -> None:
        self._folder = folder
        self._settings = dict(settings)
        self._state = state
        self._lines: JsonLinesWriter | None = None
        self._part: IO[bytes] | None = None
        self._part_file = 0

    def __enter__(self) -> Journal:
        """Lock the journal of an earlier run."""
        if self._state.settings is not None:
            self._open()
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._part, self._lines):
            if file is not None:
                file.close()

    def finished_traces(self, file: int) -> dict[int, dict[str, Any]]:
        """Return the traces in the part of ``file`` by place; later ones are appended."""
        size = self._state.part_bytes.get(file, 0)
        path = self._part_path(file)
        traces: dict[int, dict[str, Any]] = {}
        if size:
            with path.open("rb") as stream:
                while stream.tell() < size:
                    batch = load_pickle(stream, file=str(path))
                    assert isinstance(batch, dict)
                    traces.update(zip(batch["places"], batch["traces"], strict=True))
            self._open_part(file, size)
        return traces

    def add_batch(self, record: BatchRecord, traces: Sequence[Mapping[str, Any]]) -> None:
        """Write and flush a batch; a resumed run does not repeat it."""
        if self._part is None or self._part_file != record.file:
            self._open_part(record.file, 0)
        assert self._part is not None
        if traces:
            places = [place for place, _, _ in record.traces]
            pickle.dump({"places": places, "traces": list(traces)}, self._part, _PROTOCOL)
            self._part.flush()
            os.fsync(self._part.fileno())
        self._write(
            {
                "batch": record.batch,
                "file": record.file,
                "part_bytes": self._part.tell(),
                "traces": record.traces,
                "failed": [astuple(one) for one in record.failed],
                "counts": record.counts,
            }
        )

    def close_file(self, file: int, traces: int) -> None:
        """Record that ``file`` is complete and remove its part."""
        self._write({"file": file, "traces": traces})
        if self._part is not None:
            self._part.close()
            self._part = None
        self.remove_part(file)

    def set_destination(self, destination: str) -> None:
        """Record the destination of complete files."""
        if self._state.destination != destination:
            self._write({"taker": destination})
            self._state.destination = destination

    def record_removed(self, files: Sequence[int]) -> None:
        """Record that complete files are about to be removed."""
        self._write({"removed": list(files)})

    def remove_part(self, file: int) -> None:
        """Remove the part of a complete file."""
        self._part_path(file).unlink(missing_ok=True)

    def _part_path(self, file: int) -> Path:
        return self._folder / f".{batch_file(file, 'part')}"

    def _open_part(self, file: int, size: int) -> None:
        if self._part is not None:
            self._part.close()
        path = self._part_path(file)
        self._part = path.open("r+b" if size else "wb")
        self._part.truncate(size)
        self._part.seek(size)
        self._part_file = file
        sync_folder(self._folder)

    def _open(self) -> JsonLinesWriter:
        path = self._folder / JOURNAL_NAME
        lines = lock_journal(path)
        if read_journal(self._folder).size_bytes != self._state.size_bytes:
            lines.close()
            raise ValueError(
                f"{path} was written by another process since it was read; continue with resume."
            )
        lines.truncate(self._state.size_bytes)
        sync_folder(self._folder)
        self._lines = lines
        return lines

    def _write(self, line: Mapping[str, Any]) -> None:
        lines = self._lines
        if lines is None:
            lines = self._open()
            if not self._state.size_bytes:  # a run without a batch leaves no journal
                header = {"journal": _FORMAT, "settings": self._settings}
                lines.append(header, flush=False)
        lines.append(line)


def lock_journal(path: Path) -> JsonLinesWriter:
    """Open and lock a journal; raise ValueError if another process is writing it."""
    try:
        return JsonLinesWriter(path)
    except BlockingIOError as error:
        raise ValueError(
            f"{path} is being written by another process; wait for it, or choose another folder."
        ) from error


def write_failures(folder: Path, failures: Sequence[Failure]) -> None:
    """Write ``failures.jsonl`` in the order of the asks, or remove it if there are none."""
    path = folder / FAILURES_NAME
    if not failures:
        path.unlink(missing_ok=True)
        return
    with atomic_file(path) as file:
        for one in sorted(failures, key=lambda failure: failure.place):
            line = {name: value for name, value in vars(one).items() if name != "place"}
            file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
