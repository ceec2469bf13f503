"""What a run counts over its samples; parts add up in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.shards.format.wide import HalfStates

if TYPE_CHECKING:  # processes that read files do without the index
    from wdsbench.shards.format.index import LayerEntry


@dataclass
class LayerTotals:
    """Sums over samples of what :func:`to_half` says of each layer."""

    max_abs: NDArray[np.float64]
    infinities: NDArray[np.int64]
    scaled: NDArray[np.int64]
    error_max: NDArray[np.float64]

    @classmethod
    def zeros(cls, layers: int) -> LayerTotals:
        """Return the totals of no samples."""
        return cls(
            np.zeros(layers),
            np.zeros(layers, np.int64),
            np.zeros(layers, np.int64),
            np.zeros(layers),
        )

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
        """Return what the index says of the layers."""
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
        """Return the totals that an index holds; `entries` is the way there."""
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
        layers: Of the states.
        samples: How many.
        unlabelled: Without a label.
        attention: Samples by kind of attention that is kept.
        with_attention: Samples of which any is kept.
        graphs: Samples whose source held edges, not maps.
        remarks: What readers changed, and how often.
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
        """Return JSON; `from_json` is the way back, exactly."""
        layers = {name: values.tolist() for name, values in vars(self.layers).items()}
        return {**vars(self), "layers": layers}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Tally:
        """Return what `to_json` gave."""
        stored = value["layers"]
        layers = LayerTotals(
            np.array(stored["max_abs"], np.float64),
            np.array(stored["infinities"], np.int64),
            np.array(stored["scaled"], np.int64),
            np.array(stored["error_max"], np.float64),
        )
        counters = {name: Counter(value[name]) for name in ("attention", "remarks")}
        return cls(**{**value, **counters, "layers": layers})
