"""Arrays of one sample in memory, compared with the table of kinds; statistics of its states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.shards.format.kinds import Sizes
from wdsbench.shards.read.sample import StoredSample, parse_npy

#: Elements processed together: block and temporary stay in a core's L2 cache.
BLOCK_ELEMENTS: Final = 64 * 1024

#: All exponent bits of a float16: this magnitude is infinity, a larger one is NaN.
HALF_INFINITY: Final = 0x7C00


class ContentError(Exception):
    """A problem of a member's content; ``offset_bytes`` is a place in its data, or None.

    ``kind`` is ``"npy"`` (header, dtype, shape), ``"value"``, ``"meta"`` or ``"member"`` (missing).
    """

    def __init__(self, kind: str, member: str, offset_bytes: int | None, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.member = kind, member
        self.offset_bytes, self.detail = offset_bytes, detail


@dataclass(frozen=True)
class CheckedArray:
    """An npy member whose dtype and shape fit the sample; ``values`` are uncopied."""

    name: str
    values: NDArray[Any]
    payload_bytes: int

    def wrong(self, element: int, detail: str) -> ContentError:
        place = self.payload_bytes + element * self.values.dtype.itemsize
        return ContentError("value", self.name, place, detail)


def parsed(sample: StoredSample, member: str, data: NDArray[np.uint8]) -> CheckedArray:
    """Return a member's array; raise `ContentError` if its header, dtype or shape is wrong."""
    try:
        values, payload = parse_npy(data.data)
    except _core.FormatError as error:
        raise ContentError("npy", member, error.offset_bytes, error.detail) from error
    spec = sample.index.member_specs[member]
    wrong = spec.mismatch(values.dtype.str, values.shape, sample.sizes)
    if wrong is not None:
        raise ContentError("npy", member, 0, wrong)
    return CheckedArray(member, values, payload)


@dataclass
class LayerStats:
    """Statistics of stored states, arrays ``[L]``: each layer's largest finite magnitude (scales
    applied), its infinities, and the number of samples in which its scale is not 1.
    """

    max_abs: NDArray[np.float64]
    infinities: NDArray[np.int64]
    scaled: NDArray[np.int64]

    @classmethod
    def zeros(cls, layers: int) -> LayerStats:
        """Return the statistics of no samples."""
        return cls(np.zeros(layers), np.zeros(layers, np.int64), np.zeros(layers, np.int64))

    def add(self, other: LayerStats) -> None:
        np.maximum(self.max_abs, other.max_abs, out=self.max_abs)
        self.infinities += other.infinities
        self.scaled += other.scaled


def check_states(states: CheckedArray, sizes: Sizes, stats: LayerStats) -> None:
    """Add the statistics of states ``[L, t, D]``; raise `ContentError` for a NaN."""
    layers = states.values.reshape(sizes.layers, -1)
    if layers.size <= BLOCK_ELEMENTS:
        tops = magnitudes(layers).max(axis=1, initial=0)
    else:
        tops = np.array([_largest(layer) for layer in layers])
    infinity = HALF_INFINITY if layers.dtype == np.float16 else np.inf
    for layer in np.flatnonzero(~(tops < infinity)).tolist():
        values = magnitudes(layers[layer])
        nan = ~(values <= infinity)
        if nan.any():
            place = int(nan.argmax())
            token = sizes.tokens - sizes.states + place // sizes.features
            raise states.wrong(
                layer * layers.shape[1] + place,
                f"NaN in layer {layer}, token {token}, feature {place % sizes.features}; NaN is"
                " never packed: extract this trace again",
            )
        stats.infinities[layer] += int((values == infinity).sum())
        tops[layer] = values[values < infinity].max(initial=0)
    half = layers.dtype == np.float16
    stats.max_abs[:] = tops.astype(np.uint16).view(np.float16) if half else tops


def check_scales(scales: CheckedArray, stats: LayerStats) -> None:
    """Apply the layers' scales; raise `ContentError` for one that is not a power of two."""
    factors = scales.values
    # A power of two has the mantissa 0.5; NaN and infinity do not.
    bad = ~((np.frexp(factors)[0] == 0.5) & np.isfinite(factors))
    if bad.any():
        layer = int(bad.argmax())
        detail = f"the scale of layer {layer} is {factors[layer]}, expected a power of two"
        raise scales.wrong(layer, detail)
    stats.max_abs *= factors
    stats.scaled += factors != 1


def magnitudes(values: NDArray[Any]) -> NDArray[Any]:
    """Return magnitudes; of float16 as integers, which have the same order."""
    half = values.dtype == np.float16
    found: NDArray[Any] = values.view(np.uint16) & np.uint16(0x7FFF) if half else np.abs(values)
    return found


def _largest(layer: NDArray[Any]) -> Any:
    """Return the largest magnitude of one layer, NaN above all others; block by block."""
    starts = range(0, layer.size, BLOCK_ELEMENTS)
    return np.max([magnitudes(layer[first : first + BLOCK_ELEMENTS]).max() for first in starts])
