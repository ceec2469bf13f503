"""Questions of public data sets by name: TriviaQA, TruthfulQA.

The package ``datasets`` loads them and keeps a copy under ``HF_HOME``, so only the first use needs
the network.

    triviaqa     validation, rc.nocontext; repeated questions (one row for each source of evidence)
                 are used once; references: the answer and its aliases. Source: Joshi et al. 2017.
    truthfulqa   validation, generation; references: the best and all correct answers; ids
                 ``truthfulqa-0`` ... by position. Source: Lin et al. 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wdsbench.errors import QuestionError
from wdsbench.llm.questions import Question, read_questions, require_limit


@dataclass(frozen=True)
class _Named:
    path: str
    config: str
    split: str
    question_of: Callable[[int, Mapping[str, Any]], Question]


def load_questions(source: str | Path, limit: int | None = None) -> list[Question]:
    """Return the first ``limit`` questions of a file or of a data set in ``NAMES``.

    Raises:
        QuestionError: The file or the data set cannot be read.
        ValueError: ``limit`` is below 1.
    """
    name = str(source)
    if name not in _NAMED:
        return read_questions(Path(source), limit)
    require_limit(limit)
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
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise QuestionError(
            f"questions {name} ({named.path}) cannot be fetched: {said}; the first use needs the"
            " network; copy HF_HOME from a machine that has the data, or give a .jsonl or .csv"
            " file."
        ) from error
    finally:
        if bars:
            datasets.enable_progress_bars()


def _triviaqa(_place: int, row: Mapping[str, Any]) -> Question:
    answer = row["answer"]
    return Question(
        str(row["question_id"]),
        row["question"].strip(),
        _references([answer["value"], *answer["aliases"]]),
    )


def _truthfulqa(place: int, row: Mapping[str, Any]) -> Question:
    return Question(
        f"truthfulqa-{place}",
        row["question"].strip(),
        _references([row["best_answer"], *row["correct_answers"]]),
    )


def _references(texts: list[str]) -> tuple[str, ...]:
    """Return the distinct non-empty texts in their order."""
    return tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))


_NAMED: Final = {
    "triviaqa": _Named("mandarjoshi/trivia_qa", "rc.nocontext", "validation", _triviaqa),
    "truthfulqa": _Named("truthfulqa/truthful_qa", "generation", "validation", _truthfulqa),
}
NAMES: Final = tuple(_NAMED)
