"""Scores of answers by several measures, in one CSV.

    question_id,exact_match,token_f1,rouge_l,bleurt_score,abstained
    q1,0,0.666667,0.500000,0.412310,0

A column ``trace`` (0, 1, ...) follows ``question_id`` where a question has several answers; traces
that do not say their number are numbered as packing does, in order of appearance in the files
sorted by path. So score the files that are packed, all in one run: packing refuses rows that may be
another trace's (module ``pack.labels``). ``abstained`` is for people and filters; packing takes it
for a score only where it is asked for by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import xxhash

from wdsbench.errors import ScoreError
from wdsbench.files import require_file_place, write_whole
from wdsbench.llm.abstain import Abstentions
from wdsbench.llm.agreement import Agreement, agreements
from wdsbench.llm.measures import MEASURES, exact_match, normalise_answer, rouge_l, token_f1
from wdsbench.llm.options import ScoreOptions
from wdsbench.llm.questions import Question
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Trace
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces
from wdsbench.traces.scores import ABSTAINED_COLUMN, ID_COLUMN, TRACE_COLUMN, scores_csv

if TYPE_CHECKING:
    from wdsbench.llm.judge import Judge

__all__ = (
    "ScoreOptions",
    "ScoreReport",
    "exact_match",
    "normalise_answer",
    "rouge_l",
    "score_traces",
    "token_f1",
)

_NAMED_IDS: Final = 5  # an error names this many ids


class Scorer(Protocol):
    """Scores answers against their references (``judge.Judge``).

    Attributes:
        cut: Number of pairs that were too long and were cut.
    """

    cut: int

    def score(
        self,
        answers: Sequence[str],
        references: Sequence[Sequence[str]],
        progress: Progress = no_progress,
    ) -> list[float]: ...


@dataclass(frozen=True)
class ScoreReport:
    """Result of scoring.

    Attributes:
        scored: Traces scored, one per line of the CSV.
        traces_without_question: Traces left out because their question is unknown.
        questions_without_trace: Questions without a trace.
        abstained: Scored traces that abstain.
        means: Mean of every measure over its cells that are not empty.
        agreement: Agreement of every two measures over the answers that do not abstain.
        several: True if the CSV has a column ``trace``.
        cut: By judge: pairs of reference and answer that were too long for it and were cut.
    """

    scored: int
    traces_without_question: int
    questions_without_trace: int
    abstained: int
    means: dict[str, float]
    agreement: list[Agreement]
    several: bool
    cut: dict[str, int] = field(default_factory=dict)

    @property
    def exact_match(self) -> float:
        """Mean over the scored traces, 0 to 1."""
        return self.means["exact_match"]

    @property
    def token_f1(self) -> float:
        """Mean over the scored traces, 0 to 1."""
        return self.means["token_f1"]


@dataclass(frozen=True)
class _Answer:
    question_id: str
    trace: int
    text: str
    references: tuple[str, ...]


def score_traces(
    patterns: Sequence[str | Path],
    questions: Sequence[Question],
    out_csv: Path,
    options: ScoreOptions | None = None,
    *,
    judges: Mapping[str, Scorer] | None = None,
    progress: Progress = no_progress,
) -> ScoreReport:
    """Score the answers in raw trace files and write them as a CSV.

    One line for each trace whose question is known, in the order of files and traces. The file
    appears only when it is complete; the same traces and questions give the same bytes.

    Args:
        patterns: Raw trace files (module ``traces.files``).
        questions: Questions with their references.
        out_csv: The score file; its folder is made if missing.
        options: See :class:`ScoreOptions`; its models are not loaded here.
        judges: Models that score, by the names of their columns; None: those of
            ``options.model`` are loaded.
        progress: Wraps the files.

    Raises:
        ValueError: ``out_csv`` is a folder, its folder cannot be created, or two columns have the
            same name.
        TraceError: A trace file or a trace cannot be used.
        ScoreError: A trace's question has no reference, two traces are the same answer, or no trace
            has a question at all. Nothing is written then.
    """
    options = options or ScoreOptions()
    abstentions = Abstentions(options.abstention)
    require_file_place(out_csv)
    if judges is None:
        judges = load_judges(options)
    _check_columns(judges)
    asked = {question.question_id: question for question in questions}
    paths = expand_patterns(patterns)
    found = _read_answers(progress(paths, len(paths), "scoring"), asked)
    texts = [answer.text for answer in found.answers]
    references = [answer.references for answer in found.answers]
    columns = {
        name: np.array([measure(*pair) for pair in zip(texts, references, strict=True)], np.float64)
        for name, measure in MEASURES.items()
    }
    for name, judge in judges.items():
        columns[name] = np.array(judge.score(texts, references, progress), np.float64)
        if not np.isfinite(columns[name]).all():
            raise ScoreError(f"model {name} gives NaN or an infinity; use another model.")
    abstained = np.array([text in abstentions for text in texts], bool)
    answered = {name: values[~abstained] for name, values in columns.items()}
    agreement = agreements(answered, options.threshold)
    if options.abstention_score != "keep":
        score = np.nan if options.abstention_score == "none" else float(options.abstention_score)
        for values in columns.values():
            values[abstained] = score
    several = any(answer.trace for answer in found.answers)
    _write_rows(out_csv, found.answers, columns, abstained, several=several)
    return ScoreReport(
        scored=len(texts),
        traces_without_question=len(found.unknown),
        questions_without_trace=len(asked.keys() - found.seen),
        abstained=int(abstained.sum()),
        means={name: _mean(values) for name, values in columns.items()},
        agreement=agreement,
        several=several,
        cut={name: judge.cut for name, judge in judges.items() if judge.cut},
    )


def load_judges(options: ScoreOptions) -> dict[str, Judge]:
    """Load the models of ``options.model``; return them by the names of their columns.

    Raises:
        ValueError: Two columns have the same name.
        ModelError: A model cannot be loaded.
    """
    named = [_column_and_path(text) for text in options.model]
    columns = [column for column, _ in named]
    if len(set(columns)) < len(columns):
        raise ValueError(
            f"--model gives the columns {', '.join(columns)}; name each by --model COLUMN=PATH"
        )
    if not named:
        return {}
    from wdsbench.llm.judge import Judge

    return {column: Judge(path, options.model_label, options.device) for column, path in named}


def _column_and_path(text: str) -> tuple[str, str]:
    """Return column and path of ``COLUMN=PATH``; the default column is made of the folder's name.

    A checkpoint with BLEURT in its name gives ``bleurt_score``, the default column of packing.
    """
    column, equals, path = text.partition("=")
    if equals and re.fullmatch(r"\w+", column):
        return column, path
    name = Path(text).name.lower()
    return "bleurt_score" if "bleurt" in name else re.sub(r"\W+", "_", name).strip("_"), text


def _check_columns(names: Iterable[str]) -> None:
    for name in names:
        if name in (*MEASURES, ID_COLUMN, TRACE_COLUMN, ABSTAINED_COLUMN) or not name.strip():
            raise ValueError(f"model name {name!r} is empty or reserved; choose another.")


@dataclass
class _Found:
    answers: list[_Answer] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)


def _read_answers(paths: Iterable[Path], asked: Mapping[str, Question]) -> _Found:
    found, numbers = _Found(), _Numbers()
    unreferenced: list[str] = []
    for path in paths:
        for trace in read_traces(path):
            question = asked.get(trace.question_id)
            if question is None:
                found.unknown.append(trace.question_id)
                continue
            number = numbers.of(trace)
            found.seen.add(trace.question_id)
            if not question.references:
                unreferenced.append(trace.question_id)
                continue
            found.answers.append(
                _Answer(trace.question_id, number, trace.answer, question.references)
            )
    if unreferenced:
        raise ScoreError(
            f"{len(unreferenced)} answered questions have no reference ({_named(unreferenced)}); "
            "add references, or leave their traces out."
        )
    if not found.answers:
        raise ScoreError(
            f"no trace's question is among the {len(asked)} questions (traces: "
            f"{_named(found.unknown)}; questions: {_named(list(asked))}); use the questions that "
            "were asked."
        )
    return found


class _Numbers:
    """Numbers traces as packing does (``pack.samples``), so that scores find their samples."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._places: dict[tuple[str, int], str] = {}
        self._contents: dict[tuple[str, int], tuple[str, str]] = {}

    def of(self, trace: Trace) -> int:
        place = f"file {trace.file}, trace {trace.position}"
        if trace.trace_number is None:
            digest = xxhash.xxh3_64_intdigest(np.ascontiguousarray(trace.hidden).data)
            content = (trace.question_id, digest)
            file, first = self._contents.setdefault(content, (trace.file, place))
            if file != trace.file:
                raise ScoreError(
                    f"{place}: question {trace.question_id} is answered by an earlier trace"
                    f" already, the same ({first}); leave the copy out."
                )
            number = self._count[trace.question_id]
        else:
            number = trace.trace_number
        self._count[trace.question_id] += 1
        earlier = self._places.setdefault((trace.question_id, number), place)
        if earlier != place:
            raise ScoreError(
                f"{place}: question {trace.question_id}, trace number {number}, is also in"
                f" {earlier}; a score file has one line for each trace."
            )
        return number


def _write_rows(
    out_csv: Path,
    answers: Sequence[_Answer],
    columns: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]],
    abstained: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    *,
    several: bool,
) -> None:
    rows = (
        (
            answer.question_id,
            answer.trace,
            [
                *(_cell(name, float(values[row])) for name, values in columns.items()),
                int(abstained[row]),
            ],
        )
        for row, answer in enumerate(answers)
    )
    write_whole(out_csv, scores_csv([*columns, ABSTAINED_COLUMN], rows, numbered=several))


def _cell(name: str, value: float) -> str:
    if np.isnan(value):
        return ""
    return f"{value:.0f}" if name == "exact_match" and value in (0, 1) else f"{value:.6f}"


def _mean(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if kept.size else float("nan")


def _named(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED_IDS]) + (", ..." if len(ids) > _NAMED_IDS else "")
