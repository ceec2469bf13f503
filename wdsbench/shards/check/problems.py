"""A problem of a data set, with its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wdsbench.errors import ShardError
from wdsbench.shards.format.table import is_table_name

#: Kinds of problems. Problems of bytes imply that the shard's hash differs too.
BYTE_KINDS: Final = ("missing", "size", "cut", "tar", "header", "padding", "end", "hash", "member")
KINDS: Final = (*BYTE_KINDS, "index", "table", "npy", "value", "meta", "split")


@dataclass(frozen=True)
class Problem:
    """A problem and its place: shard (or another file's name), member, byte of the shard, question.

    ``kind`` is one of ``KINDS``: ``missing`` shard, ``size`` of a shard, ``cut`` (bytes past the
    end of the file), ``tar`` (structure), ``header`` of a member in the tar, ``padding`` behind it,
    ``end`` of the archive, ``hash``, ``member`` (missing, unknown, not at the table's place),
    ``index``, ``table``, ``npy`` (header, dtype, shape), ``value`` (NaN, an index out of range),
    ``meta`` (``meta.json``), ``split``. ``detail`` is the value found and the expected one.
    """

    kind: str
    detail: str
    shard: str | None
    member: str | None = None
    offset_bytes: int | None = None
    question_id: str | None = None

    def __str__(self) -> str:
        place = {"shard": self.shard, "member": self.member}
        return str(ShardError(self.detail, **place, offset_bytes=self.offset_bytes))


def problem_of(error: ShardError, kind: str) -> Problem:
    """Return an error as a problem of ``kind``, or of the table."""
    name = None if error.shard is None else Path(error.shard).name
    if name is not None and (is_table_name(name) or error.detail.startswith("column ")):
        kind = "table"
    return Problem(kind, error.detail, name, error.member, error.offset_bytes)
