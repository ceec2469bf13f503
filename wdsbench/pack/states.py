"""Converts states to float16, at memory speed if all values are in range.

The result equals that of `shards.format.wide.to_half`, which is called if a value is not finite or
exceeds float16. Values are scanned in blocks, so that temporaries stay in a core's cache.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.shards.format.wide import HALF_MAX, HalfStates, to_half

_MAGNITUDE: Final = np.uint16(0x7FFF)
_BLOCK_ELEMENTS: Final = 64 * 1024


def half_states(hidden: NDArray[Any], *, overflow: str) -> HalfStates:
    """Return ``[L, T, D]`` float states as float16; see `to_half`.

    Raises:
        PackError: NaN, or a layer beyond float16 under ``overflow="error"``.
    """
    layers = len(hidden)
    contiguous = np.ascontiguousarray(hidden).reshape(layers, -1)
    max_abs = np.array([_max_abs(layer) for layer in contiguous])
    if not bool((max_abs <= HALF_MAX).all()):  # NaN compares false
        return to_half(hidden, overflow=overflow)
    return HalfStates(
        values=np.ascontiguousarray(hidden, dtype=np.float16),
        scale=None,
        max_abs=max_abs,
        infinities=np.zeros(layers, np.int64),
        error_max=np.zeros(layers, np.float64),
    )


def _max_abs(layer: NDArray[Any]) -> float:
    """Return the largest magnitude of a flat layer, which may be infinite or NaN."""
    largest = 0.0
    for first in range(0, layer.size, _BLOCK_ELEMENTS):
        block = layer[first : first + _BLOCK_ELEMENTS]
        if block.dtype == np.float16:  # magnitudes compare like their bits; NaN is largest
            bits = (block.view(np.uint16) & _MAGNITUDE).max()
            largest = float(np.fmax(largest, np.uint16(bits).view(np.float16)))
            if bits > 0x7C00:
                return float("nan")
        else:
            found = float(np.maximum(block.max(), -block.min()))
            if not found <= np.finfo(np.float64).max:
                return found
            largest = max(largest, found)
    return largest
