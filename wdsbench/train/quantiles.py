"""Percentiles of a stream of values in constant memory.

Up to `EXACT` values are kept, and percentiles are those of ``numpy.percentile``. Beyond that values
are counted in bins: the upper 20 bits of their float32 form, which is the exponent and 11 bits of
the fraction, so a percentile is within a factor of 1 +- `BOUND` of the exact one. Memory: 512 KiB
of values, or 4 MiB of counts. The order of the values has no influence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Values kept as they are.
EXACT = 1 << 16
# Bits of a float32 that are dropped: sign 0, 8 bits of exponent and 11 of the fraction are left.
_DROPPED = 12
_BINS = 1 << (31 - _DROPPED)
#: Largest relative error beyond `EXACT` values, of values from 1.2e-38: half a bin, and rounding.
BOUND = 2.0**-12 + 2.0**-22


class Percentiles:
    """Percentiles of the values (float64, at least 0 and finite) that were added."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[NDArray[np.float64]] = []
        self._bins: NDArray[np.int64] | None = None

    @property
    def exact(self) -> bool:
        """True if percentiles have no error."""
        return self._bins is None

    def add(self, values: NDArray[np.float64]) -> None:
        """Add ``values`` ``[n]``; they are copied."""
        self.count += values.size
        self._kept.append(values.copy())
        if self.count > EXACT:
            bins = self._counted()
            for part in self._kept:
                upper = part.astype(np.float32).view(np.uint32) >> _DROPPED
                bins += np.bincount(upper, minlength=_BINS)
            self._kept = []

    @classmethod
    def joined(cls, parts: Sequence[Percentiles]) -> Percentiles:
        """Return the percentiles of the values of all ``parts``."""
        whole = cls()
        for part in parts:
            if part._bins is not None:
                whole.count += part.count
                whole._counted()[:] += part._bins
        for part in parts:
            for values in part._kept:
                whole.add(values)
        return whole

    def at(self, percent: float) -> float:
        """Return the value at ``percent``, interpolated linearly between its two neighbours; raise
        ValueError if no value was added.
        """
        if not self.count:
            raise ValueError("no value was added")
        if self._bins is None:
            return float(np.percentile(np.concatenate(self._kept), percent))
        place = (self.count - 1) * percent / 100
        ranks = np.array([np.floor(place), np.ceil(place)])
        bins = np.searchsorted(np.cumsum(self._bins), ranks, side="right").astype(np.uint32)
        low, high = ((bins << _DROPPED) | (1 << (_DROPPED - 1))).view(np.float32).tolist()
        return float(low + (high - low) * (place - ranks[0]))

    def _counted(self) -> NDArray[np.int64]:
        """Return the counts of the bins, which are used from now on."""
        if self._bins is None:
            self._bins = np.zeros(_BINS, np.int64)
        return self._bins
