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

#: Name in the index and dtype of each of the totals.
_COLUMNS: Final[dict[str, tuple[str, Any]]] = {
    "max_abs": ("max_abs", np.float64),
    "infinities": ("infinities", np.int64),
    "scaled": ("scaled_samples", np.int64),
    "error_max": ("scale_error_max", np.float64),
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
        return cls(*(np.zeros(layers, dtype) for _, dtype in _COLUMNS.values()))

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

        columns = [vars(self)[name].tolist() for name in _COLUMNS]
        names = [name for name, _ in _COLUMNS.values()]
        return [
            LayerEntry(**dict(zip(names, values, strict=True)))
            for values in zip(*columns, strict=True)
        ]

    @classmethod
    def from_entries(cls, entries: list[LayerEntry]) -> LayerTotals:
        """Return the totals of an index; the inverse of `entries`."""
        return cls(
            *(
                np.array([getattr(entry, name) for entry in entries], dtype)
                for name, dtype in _COLUMNS.values()
            )
        )


@dataclass
class Tally:
    """Counts over samples.

    Attributes:
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
            *(np.array(value["layers"][name], dtype) for name, (_, dtype) in _COLUMNS.items())
        )
        counters = {name: Counter(value[name]) for name in ("attention", "remarks")}
        return cls(**{**value, **counters, "layers": layers})
