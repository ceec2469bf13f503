"""How a data set is packed, and the words that may be used for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from wdsbench.cores import usable_cores
from wdsbench.pack.reduce import parse_reduce
from wdsbench.traces.attention import EDGE_RULE, HEAD_THRESHOLD, AttentionRules


@dataclass(frozen=True)
class PackOptions:
    """How a data set is packed.

    Attributes:
        score_column: Column of the score file; None: ``bleurt_score``, or the only one beside
            ``trace`` and ``abstained``.
        threshold: A trace is hallucinated (label 1) where its score is below this.
        missing_score: Of a trace without a score (or label): ``"error"``, ``"drop"`` it, or
            ``"keep"`` it unlabelled; None: error where there is a score file, else keep, since
            raw traces need no label and ``relabel`` gives them one later.
        split_by: ``"question"`` (hash of its id) or ``"file"`` (input files dealt 70/15/15).
        attention: What is kept of the attention maps; a subset of ``full``, ``edges``, ``heads``
            and ``sketch``.
        edge_rule: ``top:SHARE`` or ``threshold:WEIGHT``.
        head_threshold: Least weight of a per-head edge.
        threads: Threads that reduce attention maps.
        reduce: ``pca:K``: keep K principal components of the states instead of all features.
        overflow: ``"scale"`` layers beyond float16 by a power of two, or ``"error"``.
        shard_mb: Size at which a shard is closed, in megabytes (1e6 bytes).
    """

    score_column: str | None = None
    threshold: float = 0.5
    missing_score: str | None = None
    split_by: str = "question"
    attention: tuple[str, ...] = ("edges", "sketch")
    edge_rule: str = EDGE_RULE
    head_threshold: float = HEAD_THRESHOLD
    threads: int = field(default_factory=usable_cores)
    reduce: str | None = None
    overflow: str = "scale"
    shard_mb: float = 256.0

    def __post_init__(self) -> None:
        """Check the words that have a fixed vocabulary.

        Raises:
            ValueError: A value outside it; what is allowed is named.
        """
        for name, allowed in (
            ("missing_score", (None, "error", "drop", "keep")),
            ("split_by", ("question", "file")),
            ("overflow", ("scale", "error")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(
                    f"{name}: {value!r} is not one of {', '.join(filter(None, allowed))}"
                )
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold: {self.threshold} is not a finite number")
        parse_reduce(self.reduce)
        _ = self.rules

    def missing(self, *, scored: bool) -> str:
        """Return what becomes of a trace without a score; ``scored``: there is a score file."""
        return self.missing_score or ("error" if scored else "keep")

    @property
    def rules(self) -> AttentionRules:
        """What is kept of attention, checked."""
        return AttentionRules(self.attention, self.edge_rule, self.head_threshold)
