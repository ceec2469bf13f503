"""What is kept of a trace's attention: the members of each kind, made from its maps, or taken over
as they were reduced at extraction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from wdsbench.pack.extracted import require_as_asked
from wdsbench.pack.options import PackOptions
from wdsbench.pack.refusal import refusal
from wdsbench.records import EdgeLists, LayerEdges, ReducedAttention, Trace
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
from wdsbench.traces.attention import MapError, as_maps, reduce_maps


@dataclass
class AttentionPacker:
    """Makes the attention members of one trace after the other, and counts them.

    Attributes:
        options: Which kinds, by which rules.
        heads: H of every trace of which heads, sketch or full was kept; 0 before the first.
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
                of the traces before; what was reduced at extraction is not what is asked for.
        """
        made: dict[str, Pieces] = {}
        for kind, members in self._kinds(trace, tokens):
            made.update(members)
            self.counts[kind] = self.counts.get(kind, 0) + 1
        self.traces += bool(made)
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

    def _kinds(self, trace: Trace, tokens: int) -> Iterator[tuple[str, dict[str, Pieces]]]:
        """Yield each wanted kind with its members."""
        wanted = self.options.attention
        if trace.graphs is not None and "edges" in wanted:
            yield "edges", edge_members(trace.graphs, tokens)
        reduced = self._reduced(trace)
        if reduced is None:
            return
        if set(wanted) - {"edges"}:
            self._check_heads(trace, reduced.num_heads)
        if "edges" in wanted and reduced.edges is not None and trace.graphs is None:
            yield "edges", edge_members(_by_layer(reduced.edges), tokens)
        if "heads" in wanted and reduced.heads is not None:
            lists = reduced.heads
            yield "heads", head_members(lists.index, lists.weight, lists.pointer, tokens)
        if "sketch" in wanted and reduced.sketch is not None:
            yield "sketch", {SKETCH: npy_pieces(reduced.sketch)}
        if "full" in wanted and trace.attentions is not None:
            yield "full", {ATTENTION: npy_pieces(causal_half(as_maps(trace.attentions)))}

    def _reduced(self, trace: Trace) -> ReducedAttention | None:
        """Return the trace's maps, reduced as asked; without maps, what extraction reduced."""
        if not self.options.attention:
            return None
        if trace.attentions is None:
            if trace.reduced is not None:
                require_as_asked(trace, trace.reduced, self.options.rules)
            return trace.reduced
        try:
            return reduce_maps(
                as_maps(trace.attentions),
                self.options.rules,
                prompt_length=trace.prompt_length,
                threads=self.options.threads,
            )
        except MapError as error:
            raise refusal(trace, str(error)) from error

    def _check_heads(self, trace: Trace, heads: int) -> None:
        if self.heads not in (0, heads):
            raise refusal(
                trace,
                f"layers of {heads} heads; heads, sketch and full need the same number in every"
                f" layer and trace, which had {self.heads}: pack with --attention edges",
            )
        self.heads = heads


def _by_layer(edges: EdgeLists) -> list[LayerEdges]:
    return [
        LayerEdges(edges.index[:, first:last], edges.weight[first:last])
        for first, last in pairwise(edges.pointer.tolist())
    ]
