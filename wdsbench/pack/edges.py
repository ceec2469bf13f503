"""Attention maps of one trace to edges, by the rule the data set was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.pack.refusal import refusal
from wdsbench.records import LayerEdges, Trace

#: Softmax in low precision ends a little above 1.
WEIGHT_MAX = 1.01


@dataclass(frozen=True)
class EdgeRule:
    """Which predecessors of a token become edges: ``top:0.35`` (a share of them) or
    ``threshold:0.01`` (a weight).
    """

    kind: str
    value: float

    @classmethod
    def parse(cls, text: str) -> EdgeRule:
        """Return the rule that ``text`` names.

        Raises:
            ValueError: Not ``top:SHARE`` or ``threshold:WEIGHT`` with a number within 0..1.
        """
        kind, _, value = text.partition(":")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if kind not in ("top", "threshold") or not 0.0 <= number <= 1.0:
            raise ValueError(
                f"edge rule {text!r} is not top:SHARE or threshold:WEIGHT with a number within 0..1"
            )
        return cls(kind, number)

    def __str__(self) -> str:
        return f"{self.kind}:{self.value:g}"


def edges_of(trace: Trace, rule: EdgeRule, threads: int = 1) -> list[LayerEdges] | None:
    """Return a trace's edges per layer, or None where it carries neither graphs nor attention.

    Raises:
        TraceError: An attention weight is not finite.
    """
    if trace.graphs is not None:
        return trace.graphs
    if trace.attentions is None:
        return None
    maps = attention_maps(trace.attentions)
    try:
        index, bits, pointer = _core.mean_edges(maps, rule.kind, rule.value, threads=threads)
    except _core.FormatError as error:
        raise refusal(trace, f"layer {error.sample}: {error.detail}") from error
    weight = bits.view(np.float16)
    layers: list[LayerEdges] = []
    for number, (first, last) in enumerate(pairwise(pointer.tolist())):
        own = weight[first:last]
        check_weights(trace, own, f"layer {number}: ")
        layers.append(LayerEdges(index[:, first:last], own))
    return layers


def check_weights(trace: Trace, weight: NDArray[np.float16], where: str = "") -> None:
    """Raise TraceError where weights are no attention probabilities."""
    if weight.size and not (weight.min() >= 0 and weight.max() <= WEIGHT_MAX):
        raise refusal(
            trace,
            f"{where}attention weights from {weight.min()} to {weight.max()}; a softmax gives 0 to"
            " 1: save the attention probabilities, not the scores",
        )


def attention_maps(attentions: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return maps ``[H, T, T]`` as the C++ readers take them: C order, float16 or float32."""
    return [
        np.ascontiguousarray(layer, np.float16 if layer.dtype == np.float16 else np.float32)
        for layer in attentions
    ]
