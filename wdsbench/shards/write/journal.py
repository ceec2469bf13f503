"""What an unfinished data set already has, so that a killed run can go on.

``.wdsbench-journal``: JSON lines. The first says what run this is; then one for each finished
shard, written when the shard is on the disk under its own name: its entry, its rows and where their
members lie; and one for each thing that whoever runs wants to know again. A last line that was cut
short is not there.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, Final

from wdsbench.errors import PackError

JOURNAL_NAME: Final = ".wdsbench-journal"


class Journal:
    """Appends records; may be used by several threads."""

    def __init__(self, path: Path, *, end_bytes: int = 0) -> None:
        """Open the file for appending.

        Args:
            path: Made where it does not exist.
            end_bytes: Where whole lines end; what lies behind is cut off.
        """
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._file, end_bytes)
        os.lseek(self._file, end_bytes, os.SEEK_SET)
        self._lock = threading.Lock()
        self._failed: OSError | None = None

    def append(self, record: dict[str, Any], *, flush: bool = True) -> None:
        """Write one line; with ``flush`` it is on the disk afterwards.

        Raises:
            OSError: It could not be written, or one before could not: what stands behind a line
                that was cut short is not read again, so nothing may be told there.
        """
        line = memoryview(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        with self._lock:
            if self._failed is not None:
                raise OSError(self._failed.errno, self._failed.strerror)
            try:
                while line:
                    line = line[os.write(self._file, line) :]
                if flush:
                    os.fsync(self._file)
            except OSError as error:
                self._failed = error
                raise

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def read_journal(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records and where their last line ends; none where there is no journal.

    Raises:
        PackError: A line is damaged that is not the last: what it and those behind it said is not
            known, and a shard that is not told of would be removed.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    records: list[dict[str, Any]] = []
    end = 0
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            record = None
        if not isinstance(record, dict):
            if number < len(lines):
                raise PackError(
                    f"{path}, line {number}: not a line of a journal; put it back from a copy, or"
                    " remove the folder and begin anew"
                )
            break
        records.append(record)
        end += len(line)
    return records, end
