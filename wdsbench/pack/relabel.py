"""New scores for a packed data set, by the rules of packing; no shard is read or written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wdsbench.errors import ScoreError
from wdsbench.pack.labels import labels_entry
from wdsbench.pack.scores import label_of, read_scores
from wdsbench.shards.index import DatasetIndex, IndexFile
from wdsbench.shards.labels import RowLabels, replace_labels

MISSING_SCORE = ("error", "keep")


@dataclass(frozen=True)
class RelabelReport:
    """What a run did.

    Attributes:
        index: The data set's index as it is now.
        samples: Samples in all splits.
        changed: Samples whose label is another now; to and from "no label" counts.
        unlabelled: Samples without a label now.
        unused: Questions of the score file that no sample has.
        one_class: Splits with samples of which fewer than two classes are known.
    """

    index: IndexFile
    samples: int
    changed: int
    unlabelled: int
    unused: int
    one_class: tuple[str, ...]


def relabel(
    folder: Path,
    scores: Path,
    *,
    score_column: str | None = None,
    threshold: float = 0.5,
    missing_score: str = "error",
) -> RelabelReport:
    """Give every sample of a data set the label and score of its question in another score file.

    Args:
        folder: The data set's.
        scores: CSV as for :func:`wdsbench.pack.pack`.
        score_column: Which column; None: ``bleurt_score``, or the only one there is.
        threshold: A sample is hallucinated (label 1) where its score is below this.
        missing_score: ``"error"``, or ``"keep"`` the sample unlabelled.

    Returns:
        What was changed.

    Raises:
        ScoreError: A bad score file, a sample without a score, or a score for none of them.
        ShardError: There is no data set, or it is damaged.
        PackError: Another process is writing there, or the disk is full.
        ValueError: An argument outside its range.
    """
    if missing_score not in MISSING_SCORE:
        hint = "; to drop samples pack again" if missing_score == "drop" else ""
        raise ValueError(
            f"missing_score: {missing_score!r} is not one of {', '.join(MISSING_SCORE)}{hint}"
        )
    if not math.isfinite(threshold):
        raise ValueError(f"threshold: {threshold} is not a finite number")
    known, column = read_scores(scores, score_column)
    changed = unused = 0

    def judge(index: DatasetIndex) -> RowLabels:
        nonlocal changed, unused
        questions = index.question_ids(np.arange(len(index)))
        _check_missing(scores, known, questions, missing_score)
        found = [known.get(question, math.nan) for question in questions]
        labels = [math.nan if score != score else label_of(score, threshold) for score in found]
        rows = RowLabels(np.array(labels, np.float32), np.array(found, np.float32))
        before = index.columns["label"]
        same = (before == rows.label) | (np.isnan(before) & np.isnan(rows.label))
        changed = int(np.count_nonzero(~same))
        unused = len(known.keys() - set(questions))
        return rows

    file = replace_labels(folder, judge, labels_entry(scores, column, threshold))
    return RelabelReport(
        index=file,
        samples=sum(entry.samples for entry in file.splits.values()),
        changed=changed,
        unlabelled=sum(entry.unlabelled for entry in file.splits.values()),
        unused=unused,
        one_class=tuple(
            name
            for name, entry in file.splits.items()
            if entry.samples and not (entry.hallucinated and entry.right)
        ),
    )


def _check_missing(
    path: Path, known: dict[str, float], questions: list[str], missing_score: str
) -> None:
    missing = [question for question in questions if question not in known]
    if not missing:
        return
    if len(missing) == len(questions):
        example = f"such as {next(iter(known))!r}" if known else "none"
        raise ScoreError(
            f"{path}: no score for any of the {len(questions)} samples: the data set has questions"
            f" such as {missing[0]!r}, the file {example}; ids are compared as text"
        )
    if missing_score == "error":
        raise ScoreError(
            f"{path}: {len(missing)} of {len(questions)} samples have no score, the first is"
            f" question {missing[0]!r}; give the scores, or relabel with --missing-score keep"
        )
