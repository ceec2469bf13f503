"""Other labels for a packed data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wdsbench.options import option

if TYPE_CHECKING:
    from wdsbench.pack.relabel import RelabelReport


@dataclass(frozen=True, kw_only=True)
class RelabelJob:
    """Options of :func:`relabel`."""

    shards: Path = option(help="Folder of the data set.", argument=True)
    scores: Path = option(
        help="CSV with question_id, a score and, where a question has several answers, trace: the"
        " number in the data set."
    )
    score_column: str | None = option(
        None, "Column of the score [bleurt_score, or the only one apart from trace and abstained]."
    )
    threshold: float = option(0.5, "A sample with a score below it is hallucinated (label 1).")
    missing_score: str = option("error", "Sample without a score: error or keep.")


def relabel(job: RelabelJob) -> RelabelReport:
    """Give a packed data set labels from other scores; its shards are not changed.

    Raises:
        ScoreError: The score file is damaged, or a sample has no score.
        ShardError: The data set is damaged.
    """
    from wdsbench.pack.relabel import relabel as relabel_dataset

    return relabel_dataset(
        job.shards,
        job.scores,
        score_column=job.score_column,
        threshold=job.threshold,
        missing_score=job.missing_score,
    )
