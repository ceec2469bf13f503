"""Exceptions for invalid data; invalid arguments raise ``ValueError`` or ``TypeError``.

Each error has its place as attributes as well as text: a handler reads ``error.shard``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wdsbench.records import Trace


#: Words for fields of an error in its text.
_WORDS = {"position": "trace", "question_id": "question", "offset_bytes": "byte"}


class WdsbenchError(Exception):
    """Base of all errors about data; the command line prints it on one line."""


@dataclass(eq=False, repr=False)
class PlacedError(WdsbenchError):
    """An error at a place, as in ``"shard x.tar, member y.npy, byte 12: <detail>"``.

    ``detail`` is the found value, the expected values and the remedy; the other fields are the
    place, None where it is not known.
    """

    detail: str

    def __str__(self) -> str:
        place = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        known = [f"{_WORDS.get(n, n)} {value}" for n, value in place.items() if value is not None]
        return f"{', '.join(known)}: {self.detail}" if known else self.detail


@dataclass(eq=False, repr=False)
class TraceError(PlacedError):
    """A raw trace file or a trace in it cannot be used; ``position`` counts traces from 0."""

    _: KW_ONLY
    file: str | None = None
    position: int | None = None
    question_id: str | None = None

    @classmethod
    def at(cls, trace: Trace, detail: str) -> TraceError:
        """Return the error of a trace that was read."""
        return cls(detail, file=trace.file, position=trace.position, question_id=trace.question_id)


@dataclass(eq=False, repr=False)
class ImageError(PlacedError):
    """An image file, or a file that belongs to images, cannot be used."""

    _: KW_ONLY
    file: str | None = None


@dataclass(eq=False, repr=False)
class QuestionError(PlacedError):
    """A questions file is malformed, or a question cannot be asked; ``line`` counts from 1."""

    _: KW_ONLY
    file: str | None = None
    line: int | None = None
    question_id: str | None = None


class ModelError(WdsbenchError):
    """A language model cannot be loaded, or does not return what a trace needs."""


class ScoreError(WdsbenchError):
    """A score file is malformed, or a trace has no score."""


class PackError(WdsbenchError):
    """A data set cannot be written (full disk, name clash, field that does not fit)."""


@dataclass(eq=False, repr=False)
class ShardError(PlacedError):
    """A shard or an index is damaged, truncated, or differs from the index.

    ``member`` is a name inside the shard, ``offset_bytes`` a place in the file, from its start.
    """

    _: KW_ONLY
    shard: str | None = None
    member: str | None = None
    offset_bytes: int | None = None


class DecodeError(ShardError):
    """A member's content does not fit the batch (dtype, shape, index range)."""


class DetectorError(WdsbenchError):
    """A detector cannot be trained or scored on this data set (missing members, one class only)."""


class RankError(WdsbenchError):
    """Processes that train together could not connect, or one of them died."""


class StoppedError(WdsbenchError):
    """A signal ended a run; its progress is saved."""

    exit_code = 128 + 2  # exit code of SIGINT in a shell


def first_line(error: Exception) -> str:
    """Return the first line of an error's text without its full stop, or the error's type."""
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
