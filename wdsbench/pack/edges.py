"""Attention maps of one trace to edges, by the rule the data set was asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdsbench import _core
from wdsbench.errors import TraceError
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


def edges_of(trace: Trace, rule: EdgeRule) -> list[LayerEdges] | None:
    """Return a trace's edges per layer, or None where it carries neither graphs nor attention.

    Raises:
        TraceError: An attention weight is not finite.
    """
    if trace.graphs is not None:
        return trace.graphs
    if trace.attentions is None:
        return None
    layers: list[LayerEdges] = []
    for number, attention in enumerate(trace.attentions):
        dtype = np.float16 if attention.dtype == np.float16 else np.float32
        try:
            source, target, weight = _core.mean_edges(
                np.ascontiguousarray(attention, dtype), rule.kind, rule.value
            )
        except _core.FormatError as error:
            raise TraceError(
                f"layer {number}: {error.detail}",
                file=trace.file,
                position=trace.position,
                question_id=trace.question_id,
            ) from error
        weights = weight.view(np.float16)
        if weights.size and not (weights.min() >= 0 and weights.max() <= WEIGHT_MAX):
            raise TraceError(
                f"layer {number}: attention weights from {weights.min()} to {weights.max()}; a"
                " softmax gives 0 to 1: save the attention probabilities, not the scores",
                file=trace.file,
                position=trace.position,
                question_id=trace.question_id,
            )
        layers.append(LayerEdges(np.stack([source, target]), weights))
    return layers
