"""Scores of answers by several measures, in one CSV.

    question_id,exact_match,token_f1,rouge_l,contains,numeric,bleurt_score,abstained
    q1,0,0.666667,0.500000,1,,0.412310,0

An empty cell is no score: ``numeric`` of a question whose references have no number, or an
abstention by choice.

If a question has several answers, a column ``trace`` (0, 1, ...) follows ``question_id``. Traces
without a number of their own are numbered as in packing: in order of appearance in the files, which
are sorted by path. Score the files that are packed in one run, since packing refuses rows that may
belong to another trace (module ``pack.labels``).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from wdsbench.errors import ScoreError
from wdsbench.files import require_file_place, write_whole
from wdsbench.llm.measures import (
    BINARY,
    MEASURES,
    Abstentions,
    Agreement,
    Column,
    LabelCount,
    agreements,
    label_counts,
    label_warnings,
)
from wdsbench.llm.options import ScoreOptions
from wdsbench.llm.questions import Question
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Trace
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces
from wdsbench.traces.scores import ABSTAINED_COLUMN, ID_COLUMN, TRACE_COLUMN, scores_csv

if TYPE_CHECKING:
    from wdsbench.llm.judge import Judge
    from wdsbench.llm.language_judge import LanguageJudge

_NAMED_IDS: Final = 5  # ids named in an error
_PART_SUFFIX: Final = ".scores.csv"


@dataclass(frozen=True)
class ScoreReport:
    """Result of scoring."""

    scored: int  # traces, one per line of the CSV
    traces_without_question: int  # left out, since their question is unknown
    questions_without_trace: int
    abstained: int  # scored traces that abstain
    means: dict[str, float]  # mean of the non-empty cells of every measure
    agreement: list[Agreement]  # of every pair of measures, over answers that do not abstain
    several: bool  # True if the CSV has a column ``trace``
    cut: dict[str, int] = field(default_factory=dict)  # pairs that each judge cut, by its column
    # Answers without a score of a language model, since its prompt would be too long, by column.
    too_long: dict[str, int] = field(default_factory=dict)
    # Labels at the threshold that each measure gives to answers that do not abstain.
    labels: dict[str, LabelCount] = field(default_factory=dict)

    @property
    def exact_match(self) -> float:
        """Mean over the scored traces, 0 to 1."""
        return self.means["exact_match"]

    @property
    def token_f1(self) -> float:
        """Mean over the scored traces, 0 to 1."""
        return self.means["token_f1"]

    @property
    def warnings(self) -> list[str]:
        """Measures that label (nearly) all answers the same, each with those that do not."""
        return label_warnings(self.labels)


def score_traces(
    patterns: Sequence[str | Path],
    questions: Sequence[Question],
    out_csv: Path,
    options: ScoreOptions | None = None,
    *,
    judges: Mapping[str, Judge] | None = None,
    language_judges: Mapping[str, LanguageJudge] | None = None,
    progress: Progress = no_progress,
) -> ScoreReport:
    """Score the answers in raw trace files and write them as a CSV.

    The CSV has one line for each trace with a known question, in the order of files and traces.
    ``judges`` and ``language_judges`` are models that score, by column; None: load those of
    ``options.model`` and ``options.judge``. Scores of language models are kept in a hidden file
    beside ``out_csv`` until it is written, by which the same call continues after an interruption.

    Raises:
        ValueError: ``out_csv`` cannot be written, or two columns have the same name.
        TraceError: A trace file or a trace cannot be used.
        ScoreError: A trace's question has no reference, two traces are the same answer, or no trace
            has a question at all. Nothing is written then.
    """
    options = options or ScoreOptions()
    abstentions = Abstentions(options.abstention)
    require_file_place(out_csv)
    if judges is None and options.model:
        from wdsbench.llm.judge import load_judges

        judges = load_judges(options)
    if language_judges is None and options.judge:
        from wdsbench.llm.language_judge import load_language_judges

        language_judges = load_language_judges(options)
    judges, language_judges = judges or {}, language_judges or {}
    for name in (*judges, *language_judges):
        if name in (*MEASURES, ID_COLUMN, TRACE_COLUMN, ABSTAINED_COLUMN) or not name.strip():
            raise ValueError(f"model name {name!r} is empty or reserved; choose another.")
    asked = {question.question_id: question for question in questions}
    paths = expand_patterns(patterns)
    answers = _Answers(asked)
    for path in progress(paths, len(paths), "scoring"):
        for trace in read_traces(path):
            answers.add(trace)
    answers.check()
    columns = _columns(answers.found, judges, progress)
    journals = {
        name: out_csv.with_name(f".{out_csv.name}.{name}.jsonl") for name in language_judges
    }
    for name, asker in language_judges.items():
        found = asker.score(answers.found, journals[name], progress)
        columns[name] = np.array(found, np.float64)
    abstained = np.array([answer.text in abstentions for answer in answers.found], bool)
    answered = {name: values[~abstained] for name, values in columns.items()}
    agreement = agreements(answered, options.threshold)
    labels = label_counts(answered, options.threshold)
    if options.abstention_score != "keep":
        score = np.nan if options.abstention_score == "none" else float(options.abstention_score)
        for values in columns.values():
            values[abstained] = score
    several = any(answer.trace for answer in answers.found)
    rows = (
        (
            answer.question_id,
            answer.trace,
            [*(_cell(name, float(values[row])) for name, values in columns.items()), int(marked)],
        )
        for row, (answer, marked) in enumerate(zip(answers.found, abstained, strict=True))
    )
    write_whole(out_csv, scores_csv([*columns, ABSTAINED_COLUMN], rows, numbered=several))
    for path in journals.values():
        path.unlink(missing_ok=True)
    return ScoreReport(
        scored=len(answers.found),
        traces_without_question=len(answers.unknown),
        questions_without_trace=len(asked.keys() - answers.count.keys()),
        abstained=int(abstained.sum()),
        means={name: _mean(values) for name, values in columns.items()},
        agreement=agreement,
        several=several,
        cut={name: judge.cut for name, judge in judges.items() if judge.cut},
        too_long={name: one.too_long for name, one in language_judges.items() if one.too_long},
        labels=labels,
    )


def _columns(
    answers: Sequence[ScoredAnswer], judges: Mapping[str, Judge], progress: Progress
) -> dict[str, Column]:
    """Return the scores of the measures and of classifiers by column."""
    texts = [answer.text for answer in answers]
    references = [answer.references for answer in answers]
    columns = {
        name: np.array([measure(*pair) for pair in zip(texts, references, strict=True)], np.float64)
        for name, measure in MEASURES.items()
    }
    for name, judge in judges.items():
        columns[name] = np.array(judge.score(texts, references, progress), np.float64)
        if not np.isfinite(columns[name]).all():
            raise ScoreError(f"model {name} gives NaN or an infinity; use another model.")
    return columns


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer of a trace, with the question that it answers."""

    question_id: str
    trace: int
    question: str
    text: str
    references: tuple[str, ...]


class _Answers:
    """The answers of traces, numbered as in packing (``pack.samples``)."""

    def __init__(self, asked: Mapping[str, Question]) -> None:
        self.found: list[ScoredAnswer] = []
        self.unknown: list[str] = []  # question ids
        self.unreferenced: list[str] = []
        self.count: Counter[str] = Counter()  # traces of each known question
        self._asked = asked
        self._places: dict[tuple[str, int], str] = {}
        self._contents: dict[tuple[str, int], tuple[str, str]] = {}

    def add(self, trace: Trace) -> None:
        question = self._asked.get(trace.question_id)
        if question is None:
            self.unknown.append(trace.question_id)
            return
        number = self._number(trace)
        if question.references:
            self.found.append(
                ScoredAnswer(
                    trace.question_id,
                    number,
                    question.question,
                    trace.answer,
                    question.references,
                )
            )
        else:
            self.unreferenced.append(trace.question_id)

    def check(self) -> None:
        if self.unreferenced:
            raise ScoreError(
                f"{len(self.unreferenced)} answered questions have no reference"
                f" ({_named(self.unreferenced)}); add references, or leave their traces out."
            )
        if not self.found:
            raise ScoreError(
                f"no trace's question is among the {len(self._asked)} questions (traces: "
                f"{_named(self.unknown)}; questions: {_named(list(self._asked))}); use the"
                " questions that were asked."
            )

    def _number(self, trace: Trace) -> int:
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
            number = self.count[trace.question_id]
        else:
            number = trace.trace_number
        self.count[trace.question_id] += 1
        earlier = self._places.setdefault((trace.question_id, number), place)
        if earlier != place:
            raise ScoreError(
                f"{place}: question {trace.question_id}, trace number {number}, is also in"
                f" {earlier}; a score file has one line for each trace."
            )
        return number


def _cell(name: str, value: float) -> str:
    if np.isnan(value):
        return ""
    return f"{value:.0f}" if name in BINARY and value in (0, 1) else f"{value:.6f}"


def _mean(values: Column) -> float:
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if kept.size else float("nan")


def _named(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED_IDS]) + (", ..." if len(ids) > _NAMED_IDS else "")


def score_part(file: Path, questions: Sequence[Question]) -> Path:
    """Score one trace file into a hidden CSV beside it, if that is missing, and return its path."""
    part = file.with_name(f".{file.name}{_PART_SUFFIX}")
    if not part.exists():
        if not file.exists():
            raise ScoreError(
                f"{part} is gone, and {file.name} was removed once it was packed; put one of them"
                " back from a copy"
            )
        score_traces([file], questions, part)
    return part


def join_parts(parts: Sequence[Path], out_csv: Path) -> None:
    """Write the scores of all files, in their order, as :func:`score_traces` over them does.

    The bytes are the same if traces of questions with several answers have numbers of their own.
    """
    tables: list[list[list[str]]] = []
    for part in parts:
        with part.open(newline="", encoding="utf-8") as file:
            tables.append(list(csv.reader(file)))
    several = any(TRACE_COLUMN in header for header, *_ in tables)
    columns: list[str] = []
    joined: list[tuple[str, int, list[str]]] = []
    for part, (header, *rows) in zip(parts, tables, strict=True):
        first = 2 if TRACE_COLUMN in header else 1  # without the column all are trace 0
        joined += [(row[0], int(row[1]) if first == 2 else 0, row[first:]) for row in rows]
        if columns and header[first:] != columns:
            raise ScoreError(
                f"{part} has the columns {', '.join(header[first:])}, {parts[0].name} has"
                f" {', '.join(columns)}: another version wrote one of them; extract again with"
                " overwrite."
            )
        columns = header[first:]
    write_whole(out_csv, scores_csv(columns, joined, numbered=several))


def remove_parts(folder: Path) -> None:
    """Remove the scores of single files."""
    for part in folder.glob(f".*{_PART_SUFFIX}"):
        part.unlink()
