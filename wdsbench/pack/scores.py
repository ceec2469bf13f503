"""Scores from a CSV file: question id to a number, and the label that a threshold makes of it."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from wdsbench.errors import ScoreError

ID_COLUMN = "question_id"
DEFAULT_SCORE_COLUMN = "bleurt_score"


def read_scores(path: Path, column: str | None = None) -> tuple[dict[str, float], str]:
    """Return the score of every question and the name of the column it came from.

    Args:
        path: CSV with a header line, a column ``question_id`` and at least one column of numbers;
            an empty cell is a question without a score.
        column: Which column; None: ``bleurt_score``, or the only other column there is.

    Raises:
        ScoreError: The file cannot be read, has no such column, a value is not a finite number, or
            a question has two different scores. The line is named.
    """
    scores: dict[str, float] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            column = _choose_column(path, reader.fieldnames or (), column)
            for record in reader:
                question_id, text = record.get(ID_COLUMN), record.get(column)
                place = f"{path}, line {reader.line_num}"
                if not question_id or text is None:
                    raise ScoreError(f"{place}: needs a {ID_COLUMN} and a {column}")
                if not text.strip():  # as pandas writes a missing number
                    continue
                score = _number(text, place, column)
                if scores.setdefault(question_id, score) != score:
                    raise ScoreError(
                        f"{place}: question {question_id!r} has scores {scores[question_id]} and "
                        f"{score}"
                    )
    except OSError as error:
        raise ScoreError(f"{path}: cannot read scores: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScoreError(f"{path}: not a UTF-8 CSV file: {error}") from error
    return scores, column


def label_of(score: float, threshold: float) -> float:
    """Return 1.0 (hallucinated) where the score is below the threshold, else 0.0."""
    return 1.0 if score < threshold else 0.0


def _choose_column(path: Path, names: object, column: str | None) -> str:
    columns = [name for name in names if name] if isinstance(names, (list, tuple)) else []
    if ID_COLUMN not in columns:
        raise ScoreError(f"{path}: no column {ID_COLUMN!r} among {columns}")
    twice = {name for name in columns if columns.count(name) > 1}
    if twice:
        raise ScoreError(f"{path}: column {sorted(twice)[0]!r} stands twice")
    others = [name for name in columns if name != ID_COLUMN]
    if column is None:
        column = others[0] if len(others) == 1 else DEFAULT_SCORE_COLUMN
    if column not in others:
        raise ScoreError(
            f"{path}: no score column {column!r} among {others}; choose one with --score-column"
        )
    return column


def _number(text: str, place: str, column: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise ScoreError(f"{place}: {column} {text!r} is not a finite number")
    return score
