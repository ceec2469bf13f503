"""Questions with reference answers: JSONL or CSV, plain or gzipped, or public data sets by name.

A JSONL line is ``{"question_id": "q1", "question": "...", "references": ["...", "..."]}``, or with
one ``"reference": "..."``. A CSV has the columns ``question_id,question,reference`` (or
``references``), with several references separated by ``|``. ``context`` is optional: the text that
the answer should agree with; it is stored, and is not part of the prompt. A key or column of groups
is read if it is named; others are ignored. A question without a reference can be asked, but not
scored.

The package ``datasets`` loads public data sets and keeps a copy under ``HF_HOME``:

    triviaqa     validation, rc.nocontext; repeated questions (one row for each source of evidence)
                 are used once; references: the answer and its aliases. Source: Joshi et al. 2017.
    truthfulqa   validation, generation; references: the best and all correct answers; ids
                 ``truthfulqa-0`` ... by position. Source: Lin et al. 2022.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import xxhash
from pydantic import BaseModel, StrictInt, StrictStr, ValidationError

from wdsbench.errors import QuestionError
from wdsbench.traces.arrays import question_id_text

SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz")
_ENCODING: Final = "utf-8-sig"  # spreadsheets write a byte order mark
_COLUMNS: Final = ("question_id", "question", "reference")
#: Names of the last column; a file has one of them.
_REFERENCE_COLUMNS: Final = ("reference", "references")


@dataclass(frozen=True)
class Question:
    """One question."""

    question_id: str  # unique
    question: str  # text for the model
    references: tuple[str, ...]  # right answers; may be empty
    context: str | None = None  # text that the answer should agree with
    group: str | None = None  # name of a group of questions


class _Line(BaseModel, extra="allow"):
    """One question of a file."""

    question_id: StrictStr | StrictInt
    question: StrictStr
    references: list[StrictStr] | None = None
    reference: StrictStr | None = None
    context: StrictStr | None = None

    def record(self, group: str | None) -> Question:
        """Return the question without empty references; ``group`` names the key of its group."""
        references = self.references or ([] if self.reference is None else [self.reference])
        kept = tuple(text.strip() for text in references if text.strip())
        name = None if group is None else (self.model_extra or {}).get(group)
        named = isinstance(name, str | int) and not isinstance(name, bool) and name != ""
        if group is not None and not named:
            raise ValueError(
                f"{group!r} is {name!r}; expected the name of the question's group (--group names"
                " a key or column other than those of every question)."
            )
        return Question(
            question_id_text(self.question_id),
            self.question,
            kept,
            self.context or None,
            None if name is None else str(name),
        )


def read_questions(
    path: Path, limit: int | None = None, group: str | None = None
) -> list[Question]:
    """Return the first ``limit`` questions of a ``.jsonl`` or ``.csv`` file, plain or gzipped;
    ``group`` is the key or column of the questions' groups.

    Raises:
        QuestionError: The file cannot be read, a line is malformed, an id is not unique, or there
            is no question. The error has the number of the line.
        ValueError: ``limit`` is below 1.
    """
    _require_limit(limit)
    questions: list[Question] = []
    line_of: dict[str, int] = {}
    for number, line in _lines(path):
        try:
            question = line.record(group)
        except ValueError as error:
            raise QuestionError(str(error), file=str(path), line=number) from error
        first = line_of.setdefault(question.question_id, number)
        if first != number:
            raise QuestionError(
                f"question_id {question.question_id!r} is also in line {first}; "
                "give every question its own id.",
                file=str(path),
                line=number,
            )
        questions.append(question)
        if len(questions) == limit:
            break
    if not questions:
        raise QuestionError("the file holds no questions.", file=str(path))
    return questions


def _require_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; must be at least 1, or None for all questions.")


def digest_of(values: Iterable[object]) -> str:
    """Return a digest (16 hex digits) of values and their order."""
    digest = xxhash.xxh3_64()
    for value in values:
        digest.update(repr(value).encode())
    return digest.hexdigest()


def digest_of_references(questions: Sequence[Question]) -> str:
    """Return a digest (16 hex digits) of the ids and references."""
    return digest_of((question.question_id, question.references) for question in questions)


def _lines(path: Path) -> Iterator[tuple[int, _Line]]:
    """Yield (line number, parsed line)."""
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise QuestionError(
            f"the name ends in none of {', '.join(SUFFIXES)}; convert or rename the file.",
            file=str(path),
        )
    parse = _json_lines if ".jsonl" in name else _csv_lines
    opener: Any = gzip.open if name.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding=_ENCODING, newline="") as text:
            yield from parse(text, str(path))
    except UnicodeDecodeError as error:
        raise QuestionError(f"not UTF-8 ({error.reason}); convert it.", file=str(path)) from error
    except (EOFError, zlib.error) as error:
        raise QuestionError(f"cannot be inflated ({error}).", file=str(path)) from error
    except OSError as error:
        detail = f"cannot be read: {error.strerror or error}."
        raise QuestionError(detail, file=str(path)) from error


def _json_lines(text: TextIO, file: str) -> Iterator[tuple[int, _Line]]:
    for number, line in enumerate(text, start=1):
        if not line.strip():
            continue
        try:
            yield number, _Line.model_validate_json(line)
        except ValidationError as error:
            raise QuestionError(_first_problem(error), file=file, line=number) from error


def _csv_lines(text: TextIO, file: str) -> Iterator[tuple[int, _Line]]:
    rows = csv.DictReader(text, strict=True)
    try:
        there = rows.fieldnames or ()
        column = next((name for name in _REFERENCE_COLUMNS if name in there), _COLUMNS[-1])
        missing = [name for name in (*_COLUMNS[:-1], column) if name not in there]
        if missing:
            raise QuestionError(
                f"columns are missing: {', '.join(missing)} (found: {', '.join(there) or 'none'});"
                f" the first line is {','.join(_COLUMNS)}.",
                file=file,
                line=1,
            )
        for row in rows:
            if None in row or None in row.values():
                raise QuestionError(
                    f"{len(rows.fieldnames or ())} columns are named in the first line, this line "
                    "has more or fewer; put texts with commas in quotes.",
                    file=file,
                    line=rows.line_num,
                )
            references = row.pop(column).split("|")
            yield rows.line_num, _Line.model_validate({**row, "references": references})
    except csv.Error as error:
        line = rows.reader.line_num
        raise QuestionError(f"not a CSV line: {error}.", file=file, line=line) from error


def _first_problem(error: ValidationError) -> str:
    """Return pydantic's first error as one sentence."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    # A union field has one error for each type; the last part of its path is the type.
    where = str(first["loc"][0]) if first["loc"] else "the line"
    return (
        f"{where}: {first['msg'].lower()}; a line is "
        '{"question_id": "q1", "question": "...", "references": ["..."]}.'
    )


@dataclass(frozen=True)
class _Named:
    path: str
    config: str
    split: str
    question_of: Callable[[int, Mapping[str, Any]], Question]


def load_questions(
    source: str | Path, limit: int | None = None, group: str | None = None
) -> list[Question]:
    """Return the first ``limit`` questions of a file, or of a public data set (without groups)."""
    name = str(source)
    if name not in _NAMED:
        return read_questions(Path(source), limit, group)
    if group is not None:
        raise ValueError(f"--group {group}: {name} has no groups; give the questions as a file.")
    _require_limit(limit)
    named = _NAMED[name]
    rows = _rows(name, named)
    questions: dict[str, Question] = {}
    try:
        for place, row in enumerate(rows):
            question = named.question_of(place, row)
            questions.setdefault(question.question_id, question)
            if len(questions) == limit:
                break
    except (KeyError, TypeError, AttributeError) as error:
        raise QuestionError(
            f"a row of {named.path} has another form ({type(error).__name__}: {error}); give the"
            " questions as a file."
        ) from error
    if not questions:
        raise QuestionError(f"{named.path} holds no questions; give them as a file.")
    return list(questions.values())


def _rows(name: str, named: _Named) -> Any:
    try:
        import datasets  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise QuestionError(
            f"questions {name} need the package datasets, which is not installed; pip install"
            " datasets, or give a .jsonl or .csv file."
        ) from error
    bars = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(named.path, named.config, split=named.split)
    except Exception as error:  # network, hub or disk: dozens of types
        from wdsbench.llm.model import first_words

        raise QuestionError(
            f"questions {name} ({named.path}) cannot be fetched: {first_words(error, 200)}; the"
            " first use needs the network; copy HF_HOME from a machine that has the data, or give a"
            " .jsonl or .csv file."
        ) from error
    finally:
        if bars:
            datasets.enable_progress_bars()


def _triviaqa(_place: int, row: Mapping[str, Any]) -> Question:
    answer = row["answer"]
    return Question(
        str(row["question_id"]),
        row["question"].strip(),
        _kept([answer["value"], *answer["aliases"]]),
    )


def _truthfulqa(place: int, row: Mapping[str, Any]) -> Question:
    return Question(
        f"truthfulqa-{place}",
        row["question"].strip(),
        _kept([row["best_answer"], *row["correct_answers"]]),
    )


def _kept(texts: list[str]) -> tuple[str, ...]:
    """Return the distinct non-empty texts in their order."""
    return tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))


_NAMED: Final = {
    "triviaqa": _Named("mandarjoshi/trivia_qa", "rc.nocontext", "validation", _triviaqa),
    "truthfulqa": _Named("truthfulqa/truthful_qa", "generation", "validation", _truthfulqa),
}
