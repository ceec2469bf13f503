"""Exceptions for invalid data; invalid arguments raise ``ValueError`` or ``TypeError``.

Each error has its place as attributes as well as text: a handler reads ``error.shard``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wdsbench.records import Trace


class WdsbenchError(Exception):
    """Base of all errors about data; the command line prints it on one line."""


class TraceError(WdsbenchError):
    """A raw trace file or a trace in it cannot be used.

    Args:
        detail: Found value, expected values, remedy.
        file: The raw file's path.
        position: Place of the trace in its file, from 0.
        question_id: The trace's question id where it is known.
    """

    def __init__(
        self,
        detail: str,
        *,
        file: str | None = None,
        position: int | None = None,
        question_id: str | None = None,
    ) -> None:
        self.detail = detail
        self.file = file
        self.position = position
        self.question_id = question_id
        super().__init__(_place(file=file, trace=position, question=question_id) + detail)

    @classmethod
    def at(cls, trace: Trace, detail: str) -> TraceError:
        """Return the error of a trace that was read."""
        return cls(detail, file=trace.file, position=trace.position, question_id=trace.question_id)


class QuestionError(WdsbenchError):
    """A questions file is malformed, or a question cannot be asked.

    Args:
        detail: Found value, expected values, remedy.
        file: The questions file.
        line: Line in that file, from 1.
        question_id: The question's id where it is known.
    """

    def __init__(
        self,
        detail: str,
        *,
        file: str | None = None,
        line: int | None = None,
        question_id: str | None = None,
    ) -> None:
        self.detail = detail
        self.file = file
        self.line = line
        self.question_id = question_id
        super().__init__(_place(file=file, line=line, question=question_id) + detail)


class ModelError(WdsbenchError):
    """A language model cannot be loaded, or does not return what a trace needs."""


class ScoreError(WdsbenchError):
    """A score file is malformed, or a trace has no score."""


class PackError(WdsbenchError):
    """A data set cannot be written (full disk, name clash, field that does not fit)."""


class ShardError(WdsbenchError):
    """A shard or an index is damaged, truncated, or differs from the index.

    Args:
        detail: Found value, expected values, remedy.
        shard: The shard's path.
        member: The member's name inside the shard.
        offset_bytes: Place in the file, in bytes from its start.
    """

    def __init__(
        self,
        detail: str,
        *,
        shard: str | None = None,
        member: str | None = None,
        offset_bytes: int | None = None,
    ) -> None:
        self.detail = detail
        self.shard = shard
        self.member = member
        self.offset_bytes = offset_bytes
        super().__init__(_place(shard=shard, member=member, byte=offset_bytes) + detail)


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
