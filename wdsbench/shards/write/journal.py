"""The journal of an unfinished data set, by which a run that was killed is resumed.

``.wdsbench-journal`` has one JSON object a line. The first describes the run. One follows for each
finished shard, written once the shard is on the disk under its own name: its index entry, its rows
and the places of their members. The others are records of the caller.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from wdsbench.errors import PackError
from wdsbench.jsonlines import JsonLinesError, read_json_lines

JOURNAL_NAME: Final = ".wdsbench-journal"


def read_journal(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records of the journal in ``folder`` and the offset at which the last ends.

    Raises:
        PackError: A line before the last is damaged. The shards it lists would be removed.
    """
    try:
        return read_json_lines(folder / JOURNAL_NAME)
    except JsonLinesError as error:
        raise PackError(
            f"{error}; restore it from a copy, or remove the folder and start again"
        ) from error
