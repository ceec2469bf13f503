"""What is kept of a trace's attention maps: the members of each kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.pack.edges import attention_maps, check_weights, edges_of
from wdsbench.pack.options import PackOptions
from wdsbench.pack.refusal import refusal
from wdsbench.records import Trace
from wdsbench.shards.index import FieldEntry
from wdsbench.shards.members import (
    ATTENTION,
    EDGES_WEIGHT,
    HEADS_WEIGHT,
    SKETCH,
    SKETCH_VALUES,
    causal_half,
    edge_members,
    head_members,
    npy_pieces,
)
from wdsbench.shards.tar import Pieces


@dataclass
class AttentionPacker:
    """Makes the attention members of one trace after the other, and counts them.

    Attributes:
        options: Which kinds, by which rules.
        heads: H of every trace that brought maps; 0 before the first.
        counts: Traces by kind.
        traces: Traces of which anything is kept.
    """

    options: PackOptions
    heads: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    traces: int = 0

    def members(self, trace: Trace, tokens: int) -> dict[str, Pieces]:
        """Return what is kept of the trace's attention.

        Raises:
            TraceError: A weight is not finite, or no attention probability; heads differ from those
                of the traces before.
        """
        made = self._members(trace, tokens)
        self.traces += bool(made)
        return made

    def _members(self, trace: Trace, tokens: int) -> dict[str, Pieces]:
        made: dict[str, Pieces] = {}
        wanted = self.options.attention
        if "edges" in wanted:
            edges = edges_of(trace, self.options.rule, self.options.threads)
            if edges is not None:
                made.update(edge_members(edges, tokens))
                self._count("edges")
        if trace.attentions is None or not set(wanted) - {"edges"}:
            return made
        self._check_heads(trace)
        maps = attention_maps(trace.attentions)
        try:
            if "heads" in wanted:
                made.update(self._heads(trace, maps, tokens))
            if "sketch" in wanted:
                values = _core.sketch(
                    maps, prompt_length=trace.prompt_length, threads=self.options.threads
                )
                made[SKETCH] = npy_pieces(values.astype(np.float16))
                self._count("sketch")
        except _core.FormatError as error:
            raise refusal(trace, f"layer {error.sample}: {error.detail}") from error
        if "full" in wanted:
            made[ATTENTION] = npy_pieces(causal_half(maps))
            self._count("full")
        return made

    def fields(self, layers: int) -> dict[str, FieldEntry]:
        """Return what the index says of the kinds that were made."""
        by_rule = f"{self.options.edge_rule} of the mean over heads, as {EDGES_WEIGHT}"
        by_head = f"weights from {self.options.head_threshold:g} of every head, as {HEADS_WEIGHT}"
        of_heads: list[int | None] = [layers, self.heads, None]
        kinds: dict[str, tuple[list[int | None], str]] = {
            "edges": ([None], by_rule),
            "heads": (of_heads, by_head),
            "sketch": ([*of_heads, len(SKETCH_VALUES)], ", ".join(SKETCH_VALUES)),
            "full": (of_heads, "causal half, row after row"),
        }
        return {
            kind: FieldEntry(dtype="<f2", shape=shape, samples=self.counts[kind], note=note)
            for kind, (shape, note) in kinds.items()
            if kind in self.counts
        }

    def _heads(self, trace: Trace, maps: list[NDArray[Any]], tokens: int) -> dict[str, Pieces]:
        index, bits, pointer = _core.head_edges(
            maps, self.options.head_threshold, threads=self.options.threads
        )
        weight = bits.view(np.float16)
        check_weights(trace, weight)
        self._count("heads")
        return head_members(index, weight, pointer, tokens)

    def _check_heads(self, trace: Trace) -> None:
        assert trace.attentions is not None
        heads = {layer.shape[0] for layer in trace.attentions}
        if len(heads) > 1 or (self.heads and heads != {self.heads}):
            raise refusal(
                trace,
                f"layers of {sorted(heads)} heads; heads, sketch and full need the same number in"
                f" every layer and trace{f', which had {self.heads}' if self.heads else ''}: pack"
                " with --attention edges",
            )
        self.heads = heads.pop()

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
