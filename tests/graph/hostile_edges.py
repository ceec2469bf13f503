"""Edge lists with one rule broken; packing, verifying, viewing and decoding refuse them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

TOKENS = 5
#: Edges of every list before a change.
_LIST = ((0, 1, 0.5), (0, 2, 0.25), (1, 2, 0.5))

Arrays = dict[str, Any]


def sound_edges(lists: int) -> Arrays:
    """Return index, weight and pointer of sound lists of 3 edges."""
    source, target, weight = np.array(_LIST * lists).T
    return {
        "index": np.stack([source, target]).astype(np.uint8),
        "weight": weight.astype(np.float16),
        "ptr": np.arange(0, 3 * lists + 1, 3, dtype=np.uint32),
    }


@dataclass(frozen=True)
class Hostile:
    """A broken edge list.

    Attributes:
        name: The broken rule.
        change: Breaks it, in place.
        kind: Expected kind of the error: dtype, shape or value.
        part: Expected array: index, weight or ptr.
        element: Expected element of that array, counted over all axes.
        words: Part of the expected error.
    """

    name: str
    change: Callable[[Arrays], None]
    kind: str
    part: str
    element: int = 0
    words: str = ""


def _set(part: str, place: Any, value: float) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[part][place] = value

    return change


def _retype(part: str, dtype: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({part: arrays[part].astype(dtype)})


def _without_last(part: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({part: arrays[part][..., :-1].copy()})


def _columns(edges: slice, order: list[int]) -> Callable[[Arrays], None]:
    """Replace edges by others of them."""

    def change(arrays: Arrays) -> None:
        arrays["index"][:, edges] = arrays["index"][:, edges][:, order]

    return change


def _end_early(arrays: Arrays) -> None:
    arrays["ptr"][-1] -= 1


HOSTILE = [
    Hostile("index of int64", _retype("index", "<i8"), "dtype", "index", words="<i8"),
    Hostile("index of uint64", _retype("index", "<u8"), "dtype", "index", words="<u8"),
    Hostile("weight of float32", _retype("weight", "<f4"), "dtype", "weight", words="<f4"),
    Hostile("pointer of int64", _retype("ptr", "<i8"), "dtype", "ptr", words="<i8"),
    Hostile("index too short", _without_last("index"), "shape", "index", words="expected"),
    Hostile("weight too short", _without_last("weight"), "shape", "weight", words="expected"),
    Hostile("pointer ends early", _end_early, "shape", "index", words="expected"),
    Hostile("pointer starts at 1", _set("ptr", 0, 1), "value", "ptr", 0, "start at 0"),
    Hostile("pointer falls", _set("ptr", 2, 2), "value", "ptr", 2, "never fall"),
    Hostile("pointer far outside", _set("ptr", 1, 10**6), "value", "ptr", 2, "never fall"),
    Hostile("self-loop", _set("index", (0, 4), 2), "value", "index", 4, "2 -> 2"),
    Hostile("backwards", _set("index", (0, 3), 3), "value", "index", 3, "3 -> 1"),
    Hostile("target T", _set("index", (1, 8), TOKENS), "value", "index", 8, "1 -> 5 of 5"),
    Hostile("target 255", _set("index", (1, 5), 255), "value", "index", 5, "1 -> 255"),
    Hostile("target order", _columns(slice(3, 5), [1, 0]), "value", "index", 4, "ordered"),
    Hostile("source order", _columns(slice(4, 6), [1, 0]), "value", "index", 5, "ordered"),
    Hostile("an edge twice", _columns(slice(4, 6), [1, 1]), "value", "index", 5, "each once"),
    Hostile("NaN", _set("weight", 4, np.nan), "value", "weight", 4, "is nan"),
    Hostile("infinite", _set("weight", 0, np.inf), "value", "weight", 0, "is inf"),
    Hostile("negative", _set("weight", 8, -0.25), "value", "weight", 8, "is -0.25"),
    Hostile("negative NaN", _set("weight", 3, -np.nan), "value", "weight", 3, "nan"),
    Hostile("weight 7", _set("weight", 5, 7.0), "value", "weight", 5, "is 7; attention weights"),
    Hostile("just above 1.01", _set("weight", 2, 1.0107), "value", "weight", 2, "is 1.01074"),
]
