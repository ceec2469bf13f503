"""Exceptions for invalid data; invalid arguments raise ``ValueError`` or ``TypeError``.

Each error has its place as attributes as well as text: a handler reads ``error.shard``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wdsbench.records import Trace


class WdsbenchError(Exception):
    """Base of all errors about data; the command line prints it on one line."""


@dataclass(eq=False, repr=False)
class TraceError(WdsbenchError):
    """A raw trace file or a trace in it cannot be used.

    Attributes:
        detail: Found value, expected values, remedy.
        file: The raw file's path.
        position: Place of the trace in its file, from 0.
        question_id: The trace's question id where it is known.
    """

    detail: str
    _: KW_ONLY
    file: str | None = None
    position: int | None = None
    question_id: str | None = None

    def __str__(self) -> str:
        place = _place(file=self.file, trace=self.position, question=self.question_id)
        return place + self.detail

    @classmethod
    def at(cls, trace: Trace, detail: str) -> TraceError:
        """Return the error of a trace that was read."""
        return cls(detail, file=trace.file, position=trace.position, question_id=trace.question_id)


@dataclass(eq=False, repr=False)
class QuestionError(WdsbenchError):
    """A questions file is malformed, or a question cannot be asked; ``line`` counts from 1."""

    detail: str
    _: KW_ONLY
    file: str | None = None
    line: int | None = None
    question_id: str | None = None

    def __str__(self) -> str:
        return _place(file=self.file, line=self.line, question=self.question_id) + self.detail


class ModelError(WdsbenchError):
    """A language model cannot be loaded, or does not return what a trace needs."""


class ScoreError(WdsbenchError):
    """A score file is malformed, or a trace has no score."""


class PackError(WdsbenchError):
    """A data set cannot be written (full disk, name clash, field that does not fit)."""


@dataclass(eq=False, repr=False)
class ShardError(WdsbenchError):
    """A shard or an index is damaged, truncated, or differs from the index.

    Attributes:
        detail: Found value, expected values, remedy.
        shard: The shard's path.
        member: The member's name inside the shard.
        offset_bytes: Place in the file, in bytes from its start.
    """

    detail: str
    _: KW_ONLY
    shard: str | None = None
    member: str | None = None
    offset_bytes: int | None = None

    def __str__(self) -> str:
        return _place(shard=self.shard, member=self.member, byte=self.offset_bytes) + self.detail


class DecodeError(ShardError):
    """A member's content does not fit the batch (dtype, shape, index range)."""


class DetectorError(WdsbenchError):
    """A detector cannot be trained or scored on this data set (missing members, one class only)."""


class RankError(WdsbenchError):
    """Processes that train together could not connect, or one of them died."""


class StoppedError(WdsbenchError):
    """A signal ended a run; its progress is saved."""

    exit_code = 128 + 2  # exit code of SIGINT in a shell


def _place(**parts: str | int | None) -> str:
    """Return ``"shard x.tar, member y.npy, byte 12: "`` from the parts that are known."""
    known = [f"{name} {value}" for name, value in parts.items() if value is not None]
    return ", ".join(known) + ": " if known else ""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text without its full stop, or the error's type."""
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
