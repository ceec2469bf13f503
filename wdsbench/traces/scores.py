"""Score files: CSV with a number for every trace, from which a threshold makes its label.

A row applies to the trace with the number in its column ``trace``, or, if there is no column or the
cell is empty, to the traces of the question without a row of their own. An empty score means that
the trace has no score.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wdsbench.errors import ScoreError

#: The score file that ``extract`` and the demo write.
SCORES_NAME: Final = "ground_truth_scores.csv"

ID_COLUMN: Final = "question_id"
TRACE_COLUMN: Final = "trace"
#: Marks answers that are abstentions; used as a score only if it is named explicitly.
ABSTAINED_COLUMN: Final = "abstained"
DEFAULT_SCORE_COLUMN: Final = "bleurt_score"

_TRACE_MAX = 2**32 - 1  # the sample table stores four bytes
#: pandas writes integers as "1.0" if a column has empty cells.
_TRACE_NUMBER = re.compile(r"([0-9]{1,10})(?:\.0+)?")


@dataclass(frozen=True)
class ScoreTable:
    """Scores, or None if the cell is empty, by (question id, trace number), and the numbers that
    have a row, ascending, by question id. Number None applies to all other traces of the question.
    ``groups`` are the questions' groups, if their column was named.
    """

    scores: Mapping[tuple[str, int | None], float | None]
    numbers: Mapping[str, tuple[int, ...]]
    groups: Mapping[str, str] = field(default_factory=dict)

    def of(self, question_id: str, number: int | None) -> float | None:
        """Return the score of a trace (number None: of the whole question), or None."""
        own = (question_id, number)
        return self.scores[own] if own in self.scores else self.scores.get((question_id, None))


def read_scores(
    path: Path, column: str | None = None, group: str | None = None
) -> tuple[ScoreTable, str]:
    """Return the scores of a CSV file with a header line, and the name of their column.

    ``column`` None means the only column of scores other than ``abstained``, or ``bleurt_score``;
    ``group`` is the column of the questions' groups.

    Raises:
        ScoreError: The file cannot be read, has no such column, or a line has a value that is not a
            finite number, an invalid trace number, or another score for the same trace.
    """
    scores: dict[tuple[str, int | None], float | None] = {}
    groups: dict[str, str] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = [name for name in reader.fieldnames or () if name]
            column = _choose_column(path, names, column, group)
            needed = [name for name in (ID_COLUMN, TRACE_COLUMN) if name in names] + [column]
            for record in reader:
                question_id, text = record.get(ID_COLUMN), record.get(column)
                trace = record.get(TRACE_COLUMN) if TRACE_COLUMN in names else ""
                place = f"{path}, line {reader.line_num}"
                if not question_id or text is None or trace is None:
                    raise ScoreError(f"{place}: needs a {' and a '.join(needed)}")
                if any(record.get(None, ())):  # cells beyond the header
                    raise ScoreError(
                        f"{place}: more cells than the header; quote texts with commas"
                    )
                if group is not None:
                    _add_group(groups, question_id, record.get(group) or "", place)
                key = (question_id, _trace_number(trace, place))
                score = _number(text, place, column) if text.strip() else None
                before = scores.setdefault(key, score)
                if before is None:
                    scores[key] = score
                elif score not in (None, before):
                    which = "" if key[1] is None else f", trace {key[1]},"
                    raise ScoreError(
                        f"{place}: question {question_id!r}{which} has scores {before} and {score}"
                    )
    except OSError as error:
        raise ScoreError(f"{path}: cannot read scores: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScoreError(f"{path}: not a UTF-8 CSV file: {error}") from error
    numbers: dict[str, list[int]] = {}
    for question_id, number in scores:
        if number is not None:
            numbers.setdefault(question_id, []).append(number)
    ordered = {name: tuple(sorted(of)) for name, of in numbers.items()}
    return ScoreTable(scores, ordered, groups), column


def scores_csv(
    columns: Sequence[str], rows: Iterable[tuple[str, int, Sequence[Any]]], *, numbered: bool
) -> bytes:
    """Return a score file; ``rows`` are the question id, trace number and cells of each trace, and
    ``numbered`` adds the column ``trace``.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([ID_COLUMN, *([TRACE_COLUMN] if numbered else []), *columns])
    for question_id, number, cells in rows:
        writer.writerow([question_id, *([number] if numbered else []), *cells])
    return text.getvalue().encode()


def label_of(score: float, threshold: float) -> float:
    """Return 1.0 (hallucinated) if the score is below the threshold, else 0.0."""
    return 1.0 if score < threshold else 0.0


def _add_group(groups: dict[str, str], question_id: str, group: str, place: str) -> None:
    before = groups.setdefault(question_id, group)
    if not group or before != group:
        found = f"groups {before!r} and {group!r}; a question has one" if group else "no group"
        raise ScoreError(f"{place}: question {question_id!r} has {found}")


def _choose_column(
    path: Path, columns: list[str], column: str | None, group: str | None = None
) -> str:
    if ID_COLUMN not in columns:
        raise ScoreError(f"{path}: no column {ID_COLUMN!r} among {columns}")
    twice = {name for name in columns if columns.count(name) > 1}
    if twice:
        raise ScoreError(f"{path}: column {sorted(twice)[0]!r} appears twice")
    others = [name for name in columns if name not in (ID_COLUMN, TRACE_COLUMN, group)]
    if group is not None and group not in columns:
        raise ScoreError(f"{path}: no column {group!r} among {columns}; choose one with --group")
    if column is None:
        measures = [name for name in others if name != ABSTAINED_COLUMN]
        column = measures[0] if len(measures) == 1 else DEFAULT_SCORE_COLUMN
    if column in (ID_COLUMN, TRACE_COLUMN):
        raise ScoreError(
            f"{path}: column {column!r} identifies the trace and is not a score; choose one of"
            f" {others} with --score-column"
        )
    if column not in others:
        raise ScoreError(
            f"{path}: no score column {column!r} among {others}; choose one with --score-column"
        )
    return column


def _trace_number(text: str, place: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    found = _TRACE_NUMBER.fullmatch(text)
    number = _TRACE_MAX + 1 if found is None else int(found[1])
    if number > _TRACE_MAX:
        raise ScoreError(
            f"{place}: {TRACE_COLUMN} {text!r} is not an integer in 0 .. {_TRACE_MAX}; leave the"
            " cell empty to score all traces without a row of their own"
        )
    return number


def _number(text: str, place: str, column: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise ScoreError(f"{place}: {column} {text!r} is not a finite number")
    return score
