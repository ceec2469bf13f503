"""Progress of library functions: they wrap an iterable, and the command line draws a bar.

A library function takes ``progress: Progress = no_progress`` and writes ``for item in
progress(items, total, "packing")``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Returns the same items, in order; may draw a bar named ``what`` of ``total`` steps (None:
    unknown).
    """

    def __call__(self, items: Iterable[T], total: int | None, what: str) -> Iterable[T]: ...


def no_progress(items: Iterable[T], total: int | None, what: str) -> Iterable[T]:  # noqa: ARG001
    """Return ``items`` as they are: the silent default of every library function."""
    return items


def prefixed(progress: Progress, prefix: str) -> Progress:
    """Return ``progress`` with ``prefix`` before the name of every bar."""

    def with_prefix(items: Iterable[T], total: int | None, what: str) -> Iterable[T]:
        return progress(items, total, prefix + what)

    return with_prefix
