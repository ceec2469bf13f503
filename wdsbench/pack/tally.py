"""Counts over samples; parts can be added in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.shards.format.wide import HalfStates

if TYPE_CHECKING:  # worker processes do not load the index
    from wdsbench.shards.format.index import LayerEntry

_DTYPES: Final[dict[str, Any]] = {
    "max_abs": np.float64,
    "infinities": np.int64,
    "scaled": np.int64,
    "error_max": np.float64,
}


@dataclass
class LayerTotals:
    """Totals over samples of the results of :func:`to_half`, by layer."""

    max_abs: NDArray[np.float64]
    infinities: NDArray[np.int64]
    scaled: NDArray[np.int64]
    error_max: NDArray[np.float64]

    @classmethod
    def zeros(cls, layers: int) -> LayerTotals:
        """Return the totals of no samples."""
        return cls(*(np.zeros(layers, dtype) for dtype in _DTYPES.values()))

    @classmethod
    def of(cls, states: HalfStates) -> LayerTotals:
        """Return the totals of one sample."""
        scaled = np.zeros(len(states.max_abs), np.int64)
        if states.scale is not None:
            scaled += states.scale != 1
        return cls(states.max_abs, states.infinities, scaled, states.error_max)

    def add(self, other: LayerTotals) -> None:
        """Add other samples."""
        if not self.max_abs.size:
            self.__dict__.update(LayerTotals.zeros(other.max_abs.size).__dict__)
        if not other.max_abs.size:
            return
        np.maximum(self.max_abs, other.max_abs, out=self.max_abs)
        np.maximum(self.error_max, other.error_max, out=self.error_max)
        self.infinities += other.infinities
        self.scaled += other.scaled

    def entries(self) -> list[LayerEntry]:
        """Return the index's entries about layers."""
        from wdsbench.shards.format.index import LayerEntry

        return [
            LayerEntry(
                max_abs=float(m), infinities=int(i), scaled_samples=int(s), scale_error_max=float(e)
            )
            for m, i, s, e in zip(
                self.max_abs, self.infinities, self.scaled, self.error_max, strict=True
            )
        ]

    @classmethod
    def from_entries(cls, entries: list[LayerEntry]) -> LayerTotals:
        """Return the totals of an index; the inverse of `entries`."""
        return cls(
            np.array([entry.max_abs for entry in entries], np.float64),
            np.array([entry.infinities for entry in entries], np.int64),
            np.array([entry.scaled_samples for entry in entries], np.int64),
            np.array([entry.scale_error_max for entry in entries], np.float64),
        )


@dataclass
class Tally:
    """Counts over samples.

    Attributes:
        layers: Totals over the states.
        samples: Samples.
        unlabelled: Samples without a label.
        attention: Samples by kind of stored attention.
        with_attention: Samples with any attention.
        graphs: Samples whose source held edges instead of maps.
        remarks: Changes that readers made, with their counts.
    """

    layers: LayerTotals = field(default_factory=lambda: LayerTotals.zeros(0))
    samples: int = 0
    unlabelled: int = 0
    attention: Counter[str] = field(default_factory=Counter)
    with_attention: int = 0
    graphs: int = 0
    remarks: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Add other samples."""
        self.layers.add(other.layers)
        self.samples += other.samples
        self.unlabelled += other.unlabelled
        self.attention.update(other.attention)
        self.with_attention += other.with_attention
        self.graphs += other.graphs
        self.remarks.update(other.remarks)

    def to_json(self) -> dict[str, Any]:
        """Return JSON, from which `from_json` restores exactly these counts."""
        layers = {name: values.tolist() for name, values in vars(self.layers).items()}
        return {**vars(self), "layers": layers}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Tally:
        """Return the counts of `to_json`."""
        layers = LayerTotals(
            *(np.array(value["layers"][name], dtype) for name, dtype in _DTYPES.items())
        )
        counters = {name: Counter(value[name]) for name in ("attention", "remarks")}
        return cls(**{**value, **counters, "layers": layers})
