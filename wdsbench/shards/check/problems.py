"""A problem of a data set, with its place."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from wdsbench.errors import ShardError
from wdsbench.shards.format.table import is_table_name

#: Kinds of problems. Problems of bytes imply that the shard's hash differs too.
BYTE_KINDS: Final = ("missing", "size", "cut", "tar", "header", "padding", "end", "hash", "member")
KINDS: Final = (*BYTE_KINDS, "index", "table", "npy", "value", "meta", "split")


@dataclass(frozen=True)
class Problem:
    """A problem and its place.

    Attributes:
        kind: One of ``KINDS``: ``missing`` shard, ``size`` of a shard, ``cut`` (bytes past the end
            of the file), ``tar`` (structure), ``header`` of a member in the tar, ``padding`` behind
            it, ``end`` of the archive, ``hash``, ``member`` (missing, unknown, not at
            the table's place), ``index``, ``table``, ``npy`` (header, dtype, shape), ``value``
            (NaN, an index out of range), ``meta`` (``meta.json``), ``split``.
        detail: The value found and what is expected.
        shard: Name of the shard, or of another file of the data set.
        member: Full name of the member.
        offset_bytes: Offset in the shard.
        question_id: Question id of the sample.
    """

    kind: str
    detail: str
    shard: str | None = None
    member: str | None = None
    offset_bytes: int | None = None
    question_id: str | None = None

    @property
    def text(self) -> str:
        """One line: place, then detail."""
        return str(
            ShardError(
                self.detail, shard=self.shard, member=self.member, offset_bytes=self.offset_bytes
            )
        )

    def as_json(self) -> dict[str, Any]:
        """Return the problem as JSON."""
        return asdict(self)


def problem_of(error: ShardError, kind: str) -> Problem:
    """Return an error as a problem of ``kind``, or of the table if the error is about the table."""
    name = None if error.shard is None else Path(error.shard).name
    if name is not None and (is_table_name(name) or error.detail.startswith("column ")):
        kind = "table"
    return Problem(kind, error.detail, name, error.member, error.offset_bytes)
