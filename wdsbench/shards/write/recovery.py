"""The finished part of a run that was killed, as its journal and its shards show it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wdsbench.errors import PackError
from wdsbench.records import SPLITS
from wdsbench.shards.write.journal import JOURNAL_NAME, read_journal
from wdsbench.shards.write.shard import (
    ClosedShard,
    FinishedShard,
    from_record,
    is_whole,
    shard_name,
)

#: Of a value in an error; lists of files are long.
_SHOWN_CHARACTERS: Final = 200


@dataclass
class Recovered:
    """The finished part of an earlier run.

    Attributes:
        closed: Finished shards of each split, up to the first that is damaged or missing.
        finished: The same shards, as the caller described them.
        records: The caller's records, in order.
        files: Names of finished files, the journal included.
        end_bytes: Offset at which the journal ends; None: there is no journal to continue.
    """

    closed: dict[str, list[ClosedShard]] = field(default_factory=dict)
    finished: list[FinishedShard] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    end_bytes: int | None = None


def recover(folder: Path, names: Collection[str], run: dict[str, Any]) -> Recovered:
    """Return the finished part of the run in ``folder``; empty if there is none.

    Args:
        folder: The data set's.
        names: Files in it that belong to the run.
        run: Settings of the run, as JSON; those of the earlier run must be equal.

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
            shard, finished = from_record(shards[name])
            closed.append(shard)
            found.finished.append(finished)
            found.files.add(name)
    return found


def _shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
