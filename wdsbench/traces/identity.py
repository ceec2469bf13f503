"""Question ids and origins of raw traces."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wdsbench.traces.arrays import as_array, storable


def question_id_text(value: object) -> str:
    """Return a question id as ``str``; integers become their decimal digits.

    Raises:
        ValueError: The id is neither text nor an integer, is empty, or is not valid Unicode.
    """
    if isinstance(value, str):
        if not value:
            raise ValueError("question_id is empty; give every question an id.")
        if storable(value) != value:
            raise ValueError("question_id is not valid Unicode (a lone surrogate); rename it.")
        return str(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    raise ValueError(f"question_id is a {type(value).__name__}; expected text or an integer.")


def question_of(raw: object) -> str | None:
    """Return the question id of an unchecked raw trace, or None."""
    try:
        return question_id_text(scalar(raw["question_id"])) if isinstance(raw, Mapping) else None
    except (KeyError, ValueError):
        return None


def origin_of(value: object) -> tuple[tuple[str, int] | None, tuple[str, ...]]:
    """Return the raw file, and the place in it, from which an unpacked trace was packed, and its
    remarks; None if ``packed_from`` is not valid.
    """
    if not isinstance(value, Mapping):
        return None, ()
    file, position, remarks = (value.get(key) for key in ("file", "position", "remarks"))
    if not isinstance(file, str) or not isinstance(position, int) or position < 0:
        return None, ()
    if not isinstance(remarks, list | tuple) or not all(isinstance(text, str) for text in remarks):
        return None, ()
    return (storable(file), position), tuple(map(storable, remarks))


def scalar(value: object) -> object:
    """Return the element of an array or tensor of one element, any other value unchanged."""
    if value is None or isinstance(value, str | int | float):
        return value
    if not (hasattr(value, "ndim") and hasattr(value, "item") and hasattr(value, "size")):
        return value
    array = as_array(value)
    return array.reshape(-1)[0] if array.size == 1 and array.dtype != object else value
