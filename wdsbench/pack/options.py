"""The options that decide how a data set is packed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from wdsbench.cores import usable_cores
from wdsbench.options import option
from wdsbench.pack.reduce import parse_reduce
from wdsbench.traces.attention import EDGE_RULE, HEAD_THRESHOLD, AttentionRules


@dataclass(frozen=True)
class PackOptions:
    """How a data set is packed; the fields' help texts say what they mean."""

    score_column: str | None = option(
        None, "Column of the score [bleurt_score, or the only one apart from trace and abstained]."
    )
    group: str | None = option(
        None, "Column of the score file that names each question's group, which is stored."
    )
    threshold: float = option(0.5, "A trace with a score below it is hallucinated (label 1).")
    missing_score: str | None = option(
        None,
        "Trace without a score or label: error, drop, or keep it unlabelled [error with a score"
        " file, else keep].",
    )
    split_by: str = option(
        "question", "Assign splits (70/15/15 train, val, test) by question or by file."
    )
    attention: tuple[str, ...] = option(
        ("edges", "sketch"),
        "Attention to store: any of full, edges, heads, sketch; or none.",
        comma=True,
    )
    edge_rule: str = option(EDGE_RULE, "For edges: top:SHARE or threshold:WEIGHT.")
    head_threshold: float = option(HEAD_THRESHOLD, "For heads: least weight of an edge.")
    #: Threads that reduce attention maps.
    threads: int = field(default_factory=usable_cores)
    reduce: str | None = option(
        None, "pca:K stores K principal components of the states, fitted on training samples."
    )
    overflow: str = option("scale", "Layers beyond float16: scale (by a power of two) or error.")
    shard_mb: float = option(256.0, "Size at which a shard is closed, in MB (1e6 bytes).")

    def __post_init__(self) -> None:
        """Raise ValueError for a value that is not one of those expected."""
        for name, expected in (
            ("missing_score", (None, "error", "drop", "keep")),
            ("split_by", ("question", "file")),
            ("overflow", ("scale", "error")),
        ):
            value = getattr(self, name)
            if value not in expected:
                raise ValueError(
                    f"{name}: {value!r} is not one of {', '.join(filter(None, expected))}"
                )
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold: {self.threshold} is not a finite number")
        parse_reduce(self.reduce)
        _ = self.rules

    def missing(self, *, scored: bool) -> str:
        """Return ``missing_score`` or its default, given whether there is a score file."""
        return self.missing_score or ("error" if scored else "keep")

    @property
    def rules(self) -> AttentionRules:
        """Rules for the attention to store."""
        return AttentionRules(self.attention, self.edge_rule, self.head_threshold)
