"""How a data set is packed, and the words that may be used for it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field

from wdsbench.pack.edges import EdgeRule
from wdsbench.pack.reduce import parse_reduce

ATTENTION_KINDS = ("full", "edges", "heads", "sketch")


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


@dataclass(frozen=True)
class PackOptions:
    """How a data set is packed.

    Attributes:
        score_column: Column of the score file; None: ``bleurt_score``, or the only one.
        threshold: A trace is hallucinated (label 1) where its score is below this.
        missing_score: ``"error"``, ``"drop"`` the trace, or ``"keep"`` it unlabelled.
        split_by: ``"question"`` (hash of its id) or ``"file"`` (input files dealt 70/15/15).
        attention: What is kept of the attention maps; a subset of ``ATTENTION_KINDS``.
        edge_rule: ``top:SHARE`` or ``threshold:WEIGHT``.
        head_threshold: Least weight of a per-head edge.
        threads: Threads that reduce attention maps.
        reduce: ``pca:K``: keep K principal components of the states instead of all features.
        overflow: ``"scale"`` layers beyond float16 by a power of two, or ``"error"``.
        shard_mb: Size at which a shard is closed, in megabytes (1e6 bytes).
    """

    score_column: str | None = None
    threshold: float = 0.5
    missing_score: str = "error"
    split_by: str = "question"
    attention: tuple[str, ...] = ("edges", "sketch")
    edge_rule: str = "top:0.35"
    head_threshold: float = 0.05
    threads: int = field(default_factory=_usable_cores)
    reduce: str | None = None
    overflow: str = "scale"
    shard_mb: float = 256.0

    def __post_init__(self) -> None:
        """Check the words that have a fixed vocabulary.

        Raises:
            ValueError: A value outside it; what is allowed is named.
        """
        for name, allowed in (
            ("missing_score", ("error", "drop", "keep")),
            ("split_by", ("question", "file")),
            ("overflow", ("scale", "error")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold: {self.threshold} is not a finite number")
        if not 0.0 <= self.head_threshold <= 1.0:
            raise ValueError(f"head_threshold: {self.head_threshold} is not within 0..1")
        for kind in self.attention:
            if kind not in ATTENTION_KINDS:
                raise ValueError(
                    f"attention: {kind!r} is not one of {', '.join(ATTENTION_KINDS)}, none"
                )
        EdgeRule.parse(self.edge_rule)
        parse_reduce(self.reduce)

    @property
    def rule(self) -> EdgeRule:
        """The edge rule, parsed."""
        return EdgeRule.parse(self.edge_rule)
