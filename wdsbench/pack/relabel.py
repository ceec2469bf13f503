"""Replaces the labels of a packed data set by the rules of packing; shards are not read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wdsbench.errors import ScoreError
from wdsbench.pack.labels import labels_entry, listed
from wdsbench.shards.format.index import IndexFile
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.labels import RowLabels, replace_labels
from wdsbench.traces.scores import ScoreTable, label_of, read_scores

MISSING_SCORE = ("error", "keep")


@dataclass(frozen=True)
class RelabelReport:
    """Result of a run.

    Attributes:
        changed: Samples with a new label, including to and from "no label".
        unused: Scores in the file that belong to no sample.
        one_class: Non-empty splits without labels of both classes.
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
    """Replace label and score of every sample by those of a score file; arguments are those of
    ``wdsbench relabel``.

    Raises:
        ScoreError: The score file is damaged, has no score for a sample or for any sample, or has
            rows of other traces than those that packing numbered.
        ShardError: There is no data set, or it is damaged.
        PackError: Another process is writing there, or the disk is full.
        ValueError: An argument is out of range.
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

    def rows_of(index: DatasetIndex) -> RowLabels:
        nonlocal changed, unused
        questions = index.question_ids(np.arange(len(index)))
        numbers = index.columns.get("trace", np.zeros(len(index), np.uint32))
        samples = list(zip(questions, numbers.tolist(), strict=True))
        _check_numbers(scores, known, index, samples)
        found = [known.of(*sample) for sample in samples]
        _check_missing(scores, known, samples, found, missing_score)
        labels = [math.nan if score is None else label_of(score, threshold) for score in found]
        rows = RowLabels(
            np.array(labels, np.float32),
            np.array([math.nan if score is None else score for score in found], np.float32),
        )
        before = index.columns["label"]
        same = (before == rows.label) | (np.isnan(before) & np.isnan(rows.label))
        changed = int(np.count_nonzero(~same))
        used = {sample if sample in known.scores else (sample[0], None) for sample in samples}
        unused = sum(score is not None and row not in used for row, score in known.scores.items())
        return rows

    file = replace_labels(folder, rows_of, labels_entry(scores, column, threshold))
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


def _check_numbers(
    path: Path, known: ScoreTable, index: DatasetIndex, samples: list[tuple[str, int]]
) -> None:
    """Raise ScoreError if the file may number the traces of a question in another order: the
    numbers were assigned by packing, and the file has rows of other traces.
    """
    packed = index.file.provenance
    if packed.numbered == 0 or not known.numbers:
        return
    traces: dict[str, set[int]] = {}
    for question, number in samples:
        if question in known.numbers and (question, None) not in known.scores:
            traces.setdefault(question, set()).add(number)
    for question, there in traces.items():
        rows = known.numbers[question]
        # Traces that packing dropped keep their number and their row.
        left_out = {n for n in rows if packed.dropped and known.of(question, n) is None}
        if set(rows) - left_out != there - left_out:
            raise ScoreError(
                f"{path}: question {question!r} has rows for {listed(rows)}, the data set"
                f" {listed(tuple(sorted(there)))}, numbered in order of appearance when it was"
                " packed, so each trace's row is not known; score the files that were packed, or"
                " give exactly the traces of the data set a row (an empty cell means no score)"
            )


def _check_missing(
    path: Path,
    known: ScoreTable,
    samples: list[tuple[str, int]],
    found: list[float | None],
    missing_score: str,
) -> None:
    missing = [sample for sample, score in zip(samples, found, strict=True) if score is None]
    if not missing:
        return
    question, number = missing[0]
    if len(missing) == len(samples):
        scored = next((row for row, score in known.scores.items() if score is not None), None)
        example = "none" if scored is None else f"such as {_named(*scored)}"
        raise ScoreError(
            f"{path}: no score for any of the {len(samples)} samples: the data set has questions"
            f" such as {_named(question, number if known.numbers else None)}, the file {example};"
            " ids are compared as text"
        )
    if missing_score == "error":
        which = _named(question, number if question in known.numbers else None)
        raise ScoreError(
            f"{path}: {len(missing)} of {len(samples)} samples have no score, the first is question"
            f" {which}; add the scores, or relabel with --missing-score keep"
        )


def _named(question: str, number: int | None) -> str:
    return repr(question) if number is None else f"{question!r}, trace {number}"
