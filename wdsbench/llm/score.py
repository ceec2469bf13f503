"""How right each answer is: normalised exact match and token F1 against the references.

Source: the SQuAD 1.1 evaluation script (Rajpurkar et al. 2016, section 6), with SQuAD 2.0's rule
that an empty text matches an empty text only.
"""

from __future__ import annotations

import csv
import io
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wdsbench.errors import ScoreError
from wdsbench.files import atomic_file
from wdsbench.llm.questions import Question
from wdsbench.progress import Progress, no_progress
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces

COLUMNS: Final = ("question_id", "exact_match", "token_f1")
_ARTICLES: Final = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_NAMED_IDS: Final = 5  # an error names this many ids


@dataclass(frozen=True)
class ScoreReport:
    """What was scored.

    Attributes:
        scored: Traces scored, one line of the CSV each.
        traces_without_question: Traces left out, their question not being among the questions.
        questions_without_trace: Questions that no trace answers.
        exact_match: Mean over the scored traces, 0 to 1.
        token_f1: Mean over the scored traces, 0 to 1.
    """

    scored: int
    traces_without_question: int
    questions_without_trace: int
    exact_match: float
    token_f1: float


def normalise_answer(text: str) -> str:
    """Return ``text`` in lower case, without ASCII punctuation and articles, single-spaced."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if the answer equals any reference once both are normalised, else 0.0."""
    normal = normalise_answer(answer)
    return float(any(normal == normalise_answer(reference) for reference in references))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the best F1 of the answer's words against any reference's, 0.0 to 1.0."""
    return max((_f1(answer, reference) for reference in references), default=0.0)


def _f1(answer: str, reference: str) -> float:
    ours, theirs = normalise_answer(answer).split(), normalise_answer(reference).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))


def score_traces(
    patterns: Sequence[str | Path],
    questions: Sequence[Question],
    out_csv: Path,
    progress: Progress = no_progress,
) -> ScoreReport:
    """Score the answers in raw trace files and write ``question_id,exact_match,token_f1``.

    One line for each trace whose question is known, in the order of files and traces. The file
    appears only when it is complete; the same traces and questions give the same bytes.

    Args:
        patterns: Raw trace files (module ``traces.files``).
        questions: Questions with their references.
        out_csv: The score file; its folder is made if missing.
        progress: Wraps the files.

    Raises:
        TraceError: A trace file or a trace cannot be used.
        ScoreError: A trace's question has no reference, two traces answer one question, or no
            trace has a question at all. Nothing is written then.
    """
    asked = {question.question_id: question for question in questions}
    paths = expand_patterns(patterns)
    rows: list[tuple[str, float, float]] = []
    seen: set[str] = set()
    unreferenced: list[str] = []
    unknown: list[str] = []
    for path in progress(paths, len(paths), "scoring"):
        for trace in read_traces(path):
            question = asked.get(trace.question_id)
            if question is None:
                unknown.append(trace.question_id)
                continue
            if trace.question_id in seen:
                raise ScoreError(
                    f"file {path}, trace {trace.position}: question {trace.question_id} is "
                    "answered "
                    "by an earlier trace already; a score file has one line for each question."
                )
            seen.add(trace.question_id)
            if not question.references:
                unreferenced.append(trace.question_id)
                continue
            rows.append(
                (
                    trace.question_id,
                    exact_match(trace.answer, question.references),
                    token_f1(trace.answer, question.references),
                )
            )
    if unreferenced:
        raise ScoreError(
            f"{len(unreferenced)} answered questions have no reference ({_named(unreferenced)}); "
            "add references, or leave their traces out."
        )
    if not rows:
        raise ScoreError(
            f"no trace's question is among the {len(asked)} questions (traces: {_named(unknown)}; "
            f"questions: {_named(list(asked))}); use the questions that were asked."
        )
    _write_rows(out_csv, rows)
    return ScoreReport(
        scored=len(rows),
        traces_without_question=len(unknown),
        questions_without_trace=len(asked) - len(seen),
        exact_match=sum(row[1] for row in rows) / len(rows),
        token_f1=sum(row[2] for row in rows) / len(rows),
    )


def _write_rows(out_csv: Path, rows: Sequence[tuple[str, float, float]]) -> None:
    out_csv.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((name, f"{exact:.0f}", f"{f1:.6f}") for name, exact, f1 in rows)
    with atomic_file(out_csv) as raw:
        raw.write(text.getvalue().encode())


def _named(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED_IDS]) + (", ..." if len(ids) > _NAMED_IDS else "")
