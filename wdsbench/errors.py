"""Exception types: what was wrong with the data, where, and what to do about it.

Arguments that are wrong raise ``ValueError`` or ``TypeError``; data that is wrong raises one of
these. Each carries the place as attributes as well as text, so that a handler reads
``error.shard`` instead of parsing a sentence.
"""

from __future__ import annotations


class WdsbenchError(Exception):
    """Base of every error about data; the command line prints it on one line."""


class TraceError(WdsbenchError):
    """A raw trace file or a trace in it cannot be used.

    Args:
        detail: What was seen, what is allowed, what to do.
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


class QuestionError(WdsbenchError):
    """A questions file is malformed, or a question cannot be asked.

    Args:
        detail: What was seen, what is allowed, what to do.
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
    """A language model cannot be loaded, or does not give what a trace needs."""


class ScoreError(WdsbenchError):
    """A score file is malformed, or a trace has no score."""


class PackError(WdsbenchError):
    """A data set cannot be written (full disk, name clash, field that does not fit)."""


class ShardError(WdsbenchError):
    """A shard or an index is damaged, cut, or not what the index says.

    Args:
        detail: What was seen, what is allowed, what to do.
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
    """A member was read but its content is not what the batch needs (dtype, shape, index range)."""


class DetectorError(WdsbenchError):
    """A detector cannot be trained or scored on this data set (missing members, one class only)."""


class RankError(WdsbenchError):
    """Processes that train together did not meet, or one of them is gone."""


class StoppedError(WdsbenchError):
    """A signal asked a run to end; what it had done is saved."""

    exit_code = 128 + 2  # as a shell says of SIGINT


def _place(**parts: str | int | None) -> str:
    """Return ``"shard x.tar, member y.npy, byte 12: "`` from the parts that are known."""
    known = [f"{name} {value}" for name, value in parts.items() if value is not None]
    return ", ".join(known) + ": " if known else ""
