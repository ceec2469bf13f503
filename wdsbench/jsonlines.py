"""Append-only files of JSON lines that survive the death of their writer.

Each line is one JSON object, on the disk before `append` returns. Only the last line can be cut
short, by a death or a full disk: reading ignores it, and `truncate` removes it before more lines
are appended.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class JsonLinesError(ValueError):
    """A line before the last is not a JSON object; ``str`` names the file and the line."""


class JsonLinesWriter:
    """Appends records to a file that it locks; may be used by several threads; a context."""

    def __init__(self, path: Path) -> None:
        """Open or create the file and lock it until `close`; BlockingIOError if it is locked."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise
        self._lock = threading.Lock()
        self._failure: OSError | None = None

    def __enter__(self) -> JsonLinesWriter:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def truncate(self, end_bytes: int) -> None:
        """Remove everything after the first ``end_bytes`` bytes (see `read_json_lines`)."""
        os.ftruncate(self._file, end_bytes)

    def append(self, record: Mapping[str, Any], *, flush: bool = True) -> None:
        """Write one line; ``flush`` waits until it is on the disk.

        Raises:
            OSError: This line or an earlier one could not be written. After a failure nothing more
                is appended: a line after one that was cut short would not be read.
        """
        line = memoryview(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        with self._lock:
            if self._failure is not None:
                raise OSError(self._failure.errno, self._failure.strerror)
            try:
                while line:
                    line = line[os.write(self._file, line) :]
                if flush:
                    os.fsync(self._file)
            except OSError as error:
                self._failure = error
                raise

    def close(self) -> None:
        """Close the file, which unlocks it."""
        os.close(self._file)


def read_json_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records of a file and the offset in bytes at which the last whole line ends.

    A last line that was cut short is ignored; a file that does not exist has no lines.

    Raises:
        JsonLinesError: Another line is damaged.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    records: list[dict[str, Any]] = []
    end_bytes = 0
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            record = None
        if not isinstance(record, dict):
            if number < len(lines):
                raise JsonLinesError(f"{path}, line {number}: not a line of a journal")
            break
        records.append(record)
        end_bytes += len(line)
    return records, end_bytes
