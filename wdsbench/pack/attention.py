"""The stored attention of a trace: members made from its maps, or reduced at extraction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wdsbench.errors import TraceError
from wdsbench.pack.options import PackOptions
from wdsbench.records import ReducedAttention, Trace
from wdsbench.shards.format.kinds import (
    ATTENTION,
    EDGES_WEIGHT,
    HEADS_WEIGHT,
    SKETCH,
    SKETCH_VALUES,
    attention_kinds,
)
from wdsbench.shards.format.members import causal_half, edge_members, npy_pieces
from wdsbench.shards.format.tar import Pieces
from wdsbench.traces.attention import (
    ATTENTION_KINDS,
    AttentionRules,
    EdgeRule,
    MapError,
    as_maps,
    reduce_maps,
)

if TYPE_CHECKING:  # worker processes do not load the index
    from wdsbench.pack.tally import Tally
    from wdsbench.shards.format.index import FieldEntry


def stored_attention(
    trace: Trace, options: PackOptions
) -> tuple[dict[str, Pieces], tuple[str, ...], int]:
    """Return the members to store, by name, their kinds, and H if all traces must have the same
    number of heads, else 0; TraceError if a weight is not a probability, or extraction reduced the
    maps with other options.
    """
    reduced = _reduced(trace, options)
    members: dict[str, Pieces] = {}
    kinds = []
    for kind, made in _kinds(trace, reduced, options.attention):
        members.update(made)
        kinds.append(kind)
    by_head = reduced is not None and set(options.attention) - {"edges"}
    return members, tuple(kinds), reduced.num_heads if reduced is not None and by_head else 0


def attention_fields(
    options: PackOptions, layers: int, heads: int, tally: Tally
) -> dict[str, FieldEntry]:
    """Return the index's entries about stored kinds of attention."""
    from wdsbench.shards.format.index import FieldEntry

    by_rule = f"{options.edge_rule} of the mean over heads, as {EDGES_WEIGHT}"
    if tally.graphs:
        by_rule = f"graphs of the input ({tally.graphs} samples), else {by_rule}"
    by_head = f"weights from {options.head_threshold:g} of every head, as {HEADS_WEIGHT}"
    notes = {
        "edges": by_rule,
        "heads": by_head,
        "sketch": ", ".join(SKETCH_VALUES),
        "full": "causal half, row after row",
    }
    return {
        kind.name: FieldEntry(
            dtype=kind.main_spec.dtypes[0],
            shape=kind.index_shape(layers, 0, heads),
            samples=tally.attention[kind.name],
            note=notes.get(kind.name, ""),
        )
        for kind in attention_kinds()
        if tally.attention[kind.name]
    }


def _kinds(
    trace: Trace, reduced: ReducedAttention | None, wanted: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Pieces]]]:
    """Yield each wanted kind with its members."""
    tokens = trace.num_tokens
    if trace.graphs is not None and "edges" in wanted:
        yield "edges", edge_members("edges", trace.graphs, tokens)
    if reduced is None:
        return
    if "edges" in wanted and reduced.edges is not None and trace.graphs is None:
        yield "edges", edge_members("edges", reduced.edges, tokens)
    if "heads" in wanted and reduced.heads is not None:
        yield "heads", edge_members("heads", reduced.heads, tokens)
    if "sketch" in wanted and reduced.sketch is not None:
        yield "sketch", {SKETCH: npy_pieces(reduced.sketch)}
    if "full" in wanted and trace.attentions is not None:
        yield "full", {ATTENTION: npy_pieces(causal_half(as_maps(trace.attentions)))}


def _reduced(trace: Trace, options: PackOptions) -> ReducedAttention | None:
    """Return the reduced maps; for a trace without maps, as extraction reduced them."""
    if not options.attention:
        return None
    if trace.attentions is None:
        if trace.reduced is not None:
            _check_extracted(trace, trace.reduced, options.rules)
        return trace.reduced
    try:
        return reduce_maps(
            as_maps(trace.attentions),
            options.rules,
            prompt_length=trace.prompt_length,
            threads=options.threads,
        )
    except MapError as error:
        raise TraceError.at(trace, str(error)) from error


def _check_extracted(trace: Trace, reduced: ReducedAttention, rules: AttentionRules) -> None:
    """Raise TraceError if a trace without maps lacks a kind or has it by another rule."""
    there = [kind for kind in ("edges", "heads", "sketch") if getattr(reduced, kind) is not None]
    missing = [kind for kind in rules.kinds if kind not in there]
    if missing:
        kept = ",".join(there)
        wanted = ",".join(kind for kind in ATTENTION_KINDS if kind in rules.kinds)
        raise TraceError.at(
            trace,
            f"the trace was extracted with --attention {kept} and has no maps, so"
            f" {', '.join(missing)} cannot be made; pack with --attention {kept}, or extract with"
            f" --attention {wanted}",
        )
    if "edges" in rules.kinds:
        assert reduced.edge_rule is not None  # stored with edges
        if EdgeRule.parse(reduced.edge_rule) != EdgeRule.parse(rules.edge_rule):
            raise _other_rule(trace, "edges", "--edge-rule", reduced.edge_rule, rules.edge_rule)
    before, now = reduced.head_threshold, rules.head_threshold
    if "heads" in rules.kinds and before != now:
        raise _other_rule(trace, "heads", "--head-threshold", before, now)


def _other_rule(trace: Trace, kind: str, option: str, there: object, asked: object) -> TraceError:
    return TraceError.at(
        trace,
        f"its {kind} were extracted with {option} {there}, not {asked}, and it has no maps to"
        f" compute them again; pack with {option} {there}",
    )
