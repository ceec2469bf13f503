"""Convert states to float16 without new infinities.

Layers beyond 65,504 are divided by a power of two, which is exact, so the only error is the
rounding of float16. The decoder multiplies by it (``hidden_scale.npy``, float32 ``[L]``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import PackError

HALF_MAX = 65504.0

#: The largest value that can be stored: a larger float32 could be rounded up to infinity.
FLOAT_MAX = HALF_MAX * 2.0**112


@dataclass(frozen=True)
class HalfStates:
    """Hidden states in their stored form: float16 ``[L, T, D]`` and the factors ``[L]``, or None.

    ``max_abs`` (largest finite magnitude), ``infinities`` and ``error_max`` (largest error of a
    scaled layer, else 0) are statistics ``[L]`` of the input.
    """

    values: NDArray[np.float16]
    scale: NDArray[np.float32] | None
    max_abs: NDArray[np.float64]
    infinities: NDArray[np.int64]
    error_max: NDArray[np.float64]


def to_half(hidden: NDArray[Any], *, overflow: str = "scale") -> HalfStates:
    """Return float states ``[L, T, D]`` as float16; ``overflow`` is ``"scale"`` or ``"error"``.

    Raises:
        PackError: NaN (the layer is named), or a layer beyond float16 under ``overflow="error"``.
    """
    layers = hidden.shape[0]
    flat = hidden.reshape(layers, -1)
    finite = np.isfinite(flat)
    infinities = np.zeros(layers, np.int64)
    magnitudes = np.abs(flat)
    if not finite.all():
        nan_layers = np.flatnonzero(np.isnan(flat).any(axis=1))
        if nan_layers.size:
            layer = nan_layers[0]
            raise PackError(f"hidden state of layer {layer} holds NaN; the trace cannot be used")
        infinities = (~finite).sum(axis=1)
        magnitudes = np.where(finite, magnitudes, 0)
    max_abs = magnitudes.max(axis=1, initial=0).astype(np.float64)
    beyond = np.flatnonzero(max_abs > FLOAT_MAX)
    if beyond.size:
        raise PackError(
            f"layer {beyond[0]} reaches {max_abs[beyond[0]]:g}, float32 ends at {FLOAT_MAX:g}, and"
            " detectors are given float32; rescale the states"
        )
    error_max = np.zeros(layers, np.float64)
    wide = np.flatnonzero(max_abs > HALF_MAX)
    if not wide.size:
        return HalfStates(
            np.ascontiguousarray(hidden, np.float16), None, max_abs, infinities, error_max
        )
    if overflow == "error":
        raise PackError(
            f"layer {wide[0]} reaches {max_abs[wide[0]]:g}, float16 ends at {HALF_MAX:g}; pack"
            " with --overflow scale"
        )
    scale = np.ones(layers, np.float32)
    scale[wide] = np.exp2(np.ceil(np.log2(max_abs[wide] / HALF_MAX)))
    values = np.ascontiguousarray(hidden / scale[:, None, None], np.float16)
    for layer in wide:
        kept = finite[layer]
        decoded = values[layer].reshape(-1)[kept].astype(np.float64) * float(scale[layer])
        error_max[layer] = np.abs(decoded - flat[layer][kept]).max(initial=0)
    return HalfStates(values, scale, max_abs, infinities, error_max)
