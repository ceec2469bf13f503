"""Labels of traces, from a score file or from the traces, and their source as the index names it.

If a score file has rows by trace number, a trace without a number is labelled in order of
appearance, which is how `wdsbench score` numbers traces. The two agree only if both saw the same
traces of the question, so the file must have exactly the rows 0, 1, ... for them; anything else
could give a trace the score of another and is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from wdsbench.errors import ScoreError
from wdsbench.pack.options import PackOptions
from wdsbench.records import Trace
from wdsbench.traces.scores import ScoreTable, label_of

if TYPE_CHECKING:  # worker processes do not load the index
    from wdsbench.pack.prepare import Prepared
    from wdsbench.shards.format.index import LabelsEntry

_SHOWN_NUMBERS: Final = 8
_REMEDY: Final = "give the traces a trace_number, or score the files that are packed, all again"


@dataclass(frozen=True)
class Labeller:
    """Labels traces, each on its own; without ``scores`` by the labels they have."""

    scores: ScoreTable | None
    options: PackOptions

    def needs_number(self, trace: Trace) -> bool:
        """Return True if the trace has no number but its question has scores by number."""
        by_number = self.scores is not None and trace.question_id in self.scores.numbers
        return by_number and trace.trace_number is None

    def label(self, trace: Trace, number: int | None) -> tuple[float | None, float | None]:
        """Return (score, label) of a trace, None where unknown; ScoreError if that is an error."""
        if self.scores is None:
            score, label = None, trace.label
        else:
            score = self.scores.of(trace.question_id, number)
            label = None if score is None else label_of(score, self.options.threshold)
        if label is None and self.options.missing(scored=self.scores is not None) == "error":
            found = "no --scores and no label"
            if self.scores is not None:
                numbers = self.scores.numbers.get(trace.question_id)
                found = "the score file has no score for it"
                if numbers:
                    found += f", trace {number} of its question (it has rows of {listed(numbers)})"
            raise ScoreError(
                f"{place_of(trace)}: {found}; add the score, or pack with --missing-score drop or"
                " keep"
            )
        return score, label


@dataclass
class NumberedLabeller:
    """Labels prepared traces whose number is known only from the traces before them.

    Attributes:
        existing: Questions of the data set that is appended to.
        places: Place of the first trace without a number, by question.
    """

    labeller: Labeller
    existing: frozenset[str] = frozenset()
    places: dict[str, str] = field(default_factory=dict)

    def label(self, prepared: Prepared, number: int) -> Prepared:
        """Return a trace that needs its ``number`` with its label, perhaps dropped; ScoreError if
        it is ambiguous which row is the trace's, or a missing score is an error.
        """
        scores, trace = self.labeller.scores, prepared.trace
        assert scores is not None  # otherwise no number is needed
        numbers = scores.numbers[trace.question_id]
        place = f"{place_of(trace)}: has no trace_number, and the score file"
        if (trace.question_id, None) in scores.scores:
            raise ScoreError(
                f"{place} has rows of its question both for {listed(numbers)} and without a trace;"
                " give the traces a trace_number, or the question rows of one kind"
            )
        if trace.question_id in self.existing:
            raise ScoreError(
                f"{place} has rows of its question for {listed(numbers)}; the data set has traces"
                f" of the question already, so the trace's row is not known: {_REMEDY}"
            )
        if number not in numbers:
            raise ScoreError(
                f"{place} has rows of its question for {listed(numbers)}; in order of appearance,"
                f" from 0, it is {number}: {_REMEDY}"
            )
        self.places.setdefault(trace.question_id, place)
        score, label = self.labeller.label(trace, number)
        dropped = label is None and self.labeller.options.missing_score == "drop"
        return replace(prepared, score=score, label=label, needs_number=False, dropped=dropped)

    def add_finished(self, question_id: str, place: str) -> None:
        """Add a trace without a number that an earlier run labelled."""
        scores = self.labeller.scores
        if scores is not None and question_id in scores.numbers:
            text = f"{place}, question {question_id}: has no trace_number, and the score file"
            self.places.setdefault(question_id, text)

    def check_counts(self, traces_of: Mapping[str, int]) -> None:
        """Raise ScoreError if a question has fewer traces than rows, after the last trace."""
        for question_id, place in self.places.items():
            assert self.labeller.scores is not None
            numbers = self.labeller.scores.numbers[question_id]
            if traces_of[question_id] != len(numbers):
                raise ScoreError(
                    f"{place} has rows of its question for {listed(numbers)}; the files hold"
                    f" {traces_of[question_id]} of them, so each trace's row is not known:"
                    f" {_REMEDY}"
                )


def place_of(trace: Trace) -> str:
    """Return the place of a trace, for an error."""
    return f"{trace.file}, trace {trace.position}, question {trace.question_id}"


def listed(numbers: tuple[int, ...]) -> str:
    """Return trace numbers as an error shows them."""
    shown = ", ".join(map(str, numbers[:_SHOWN_NUMBERS]))
    plural = "s" if len(numbers) > 1 else ""
    return f"trace{plural} {shown}{', ...' if len(numbers) > _SHOWN_NUMBERS else ''}"


def labels_entry(
    scores: Path | None, column: str | None = None, threshold: float | None = None
) -> LabelsEntry:
    """Return the index's entry about the source of labels, by default the raw traces; ScoreError
    if the score file cannot be read.
    """
    from wdsbench.shards.format.index import LabelsEntry

    if scores is None:
        return LabelsEntry(source="traces")
    return LabelsEntry(
        source="scores",
        file=scores.name,
        xxh3=_file_hash(scores),
        column=column,
        threshold=threshold,
    )


def _file_hash(path: Path) -> str | None:
    """Return the XXH3-64 of a file; None for a pipe, which has been read already."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()
    except OSError as error:
        raise ScoreError(f"{path}: cannot read scores: {error.strerror}") from error
