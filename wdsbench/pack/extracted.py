"""Whether what a trace was reduced to at extraction is what the data set asks for."""

from __future__ import annotations

from wdsbench.pack.refusal import refusal
from wdsbench.records import ReducedAttention, Trace
from wdsbench.traces.attention import ATTENTION_KINDS, AttentionRules, EdgeRule


def require_as_asked(trace: Trace, reduced: ReducedAttention, rules: AttentionRules) -> None:
    """Raise TraceError where a trace without maps lacks a kind, or has it by another rule."""
    there = {
        "edges": reduced.edges is not None,
        "heads": reduced.heads is not None,
        "sketch": reduced.sketch is not None,
    }
    missing = [kind for kind in rules.kinds if not there.get(kind)]
    if missing:
        kept = ",".join(kind for kind in there if there[kind])
        wanted = ",".join(kind for kind in ATTENTION_KINDS if kind in rules.kinds)
        raise refusal(
            trace,
            f"packing asks for --attention {wanted}, but the trace was extracted with {kept} and"
            f" holds no maps to make {', '.join(missing)} of: pack with --attention {kept}, or"
            f" extract with --attention {wanted}",
        )
    if "edges" in rules.kinds:
        assert reduced.edge_rule is not None  # beside edges
        if EdgeRule.parse(reduced.edge_rule) != EdgeRule.parse(rules.edge_rule):
            raise _other_rule(trace, "edges", "--edge-rule", reduced.edge_rule, rules.edge_rule)
    if "heads" in rules.kinds and reduced.head_threshold != rules.head_threshold:
        raise _other_rule(
            trace,
            "heads",
            "--head-threshold",
            str(reduced.head_threshold),
            str(rules.head_threshold),
        )


def _other_rule(trace: Trace, kind: str, option: str, there: str, asked: str) -> Exception:
    return refusal(
        trace,
        f"its {kind} were extracted with {option} {there}, packing asks for {option} {asked}, and"
        f" there are no maps to make them anew: pack with {option} {there}, as it was extracted",
    )
