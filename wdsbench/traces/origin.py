"""Origin of an unpacked trace, so that packing it again gives the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wdsbench.records import Trace
from wdsbench.traces.arrays import storable


@dataclass(frozen=True)
class Origin:
    """The raw file, and the place in it, from which an unpacked trace was packed."""

    file: str
    position: int


@dataclass(frozen=True)
class UnpackedTrace(Trace):
    """A trace with its origin."""

    origin: Origin | None = None


def origin_of(value: object) -> tuple[Origin | None, tuple[str, ...]]:
    """Return a trace's origin and remarks from ``packed_from``; None if it is not valid."""
    if not isinstance(value, Mapping):
        return None, ()
    file, position, remarks = (value.get(key) for key in ("file", "position", "remarks"))
    if not isinstance(file, str) or not isinstance(position, int) or position < 0:
        return None, ()
    if not isinstance(remarks, list | tuple) or not all(isinstance(text, str) for text in remarks):
        return None, ()
    return Origin(storable(file), position), tuple(map(storable, remarks))
