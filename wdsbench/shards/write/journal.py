"""The journal of an unfinished data set, by which a run that was killed is resumed.

``.wdsbench-journal`` has one JSON object a line: the settings of the run; each finished shard (its
index entry, rows and places of members) once it is on the disk; and records of the caller.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wdsbench.errors import PackError
from wdsbench.jsonlines import JsonLinesError, read_json_lines
from wdsbench.records import SPLITS
from wdsbench.shards.write.shard import ClosedShard, from_record, is_whole, shard_name

JOURNAL_NAME: Final = ".wdsbench-journal"

#: Of a value in an error; lists of files are long.
_SHOWN_CHARACTERS: Final = 200


@dataclass
class Recovered:
    """The finished part of an earlier run.

    ``closed`` are the shards of each split up to the first that is damaged or missing, ``records``
    the caller's, ``files`` the finished files, the journal included; the journal ends at
    ``end_bytes`` (None: there is none to continue).
    """

    closed: dict[str, list[ClosedShard]] = field(default_factory=dict)
    records: list[Any] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    end_bytes: int | None = None


def read_journal(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the journal's records and the offset at which the last ends.

    Raises:
        PackError: A line before the last is damaged.
    """
    try:
        return read_json_lines(folder / JOURNAL_NAME)
    except JsonLinesError as error:
        raise PackError(
            f"{error}; restore it from a copy, or remove the folder and start again"
        ) from error


def recover(folder: Path, names: Collection[str], run: dict[str, Any]) -> Recovered:
    """Return the finished part of the run with settings ``run``, to which files ``names`` belong.

    Raises:
        PackError: The settings differ, or the journal is damaged.
    """
    records, end_bytes = read_journal(folder)
    if JOURNAL_NAME not in names or not records:
        return Recovered()
    before = records[0].get("run", {})
    for key, value in run.items():
        if before.get(key) != value:
            raise PackError(
                f"{folder} holds an unfinished run with {key} {_shortened(before.get(key))}, this"
                f" run has {_shortened(value)}; resume with the settings of the unfinished run, or"
                " pack without --resume to start again"
            )
    found = Recovered(end_bytes=end_bytes)
    found.files = {JOURNAL_NAME, *(record["file"] for record in records if "file" in record)}
    found.records = [record["record"] for record in records if "record" in record]
    shards = {record["shard"]["url"]: record for record in records if "shard" in record}
    for split in SPLITS:
        closed = found.closed[split] = []
        while (name := shard_name(split, len(closed))) in shards:
            if not is_whole(folder / name, shards[name]["shard"]):
                break
            closed.append(from_record(shards[name]))
            found.files.add(name)
    return found


def _shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
