"""Labels of traces that do not say their number, where the score file is by number.

Packing numbers such traces in order of appearance, and so does ``wdsbench score``. The two agree
where both saw the same traces of a question and no others, so that is what is asked for: a question
has as many rows as it has traces here, numbered from 0. Anything else might give a trace the score
of another, and is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from wdsbench.errors import ScoreError
from wdsbench.pack.labels import Judge, listed, place_of
from wdsbench.pack.prepare import Prepared

_REMEDY = "give the traces a trace_number, or score the files that are packed, all of them anew"


@dataclass
class OrderJudge:
    """Judges prepared traces that wait for their number.

    Attributes:
        judge: What a number is worth.
        held: Questions of the data set that is appended to.
        places: Where the first trace without a number stands, of every question judged by order.
    """

    judge: Judge
    held: frozenset[str] = frozenset()
    places: dict[str, str] = field(default_factory=dict)

    def settle(self, prepared: Prepared, number: int) -> Prepared:
        """Return a trace with its label, perhaps dropped.

        Args:
            prepared: A trace that waits.
            number: How many traces of its question came before it.

        Raises:
            ScoreError: Which row is the trace's cannot be told, or it has no score and that is an
                error.
        """
        scores, trace = self.judge.scores, prepared.trace
        assert scores is not None  # or it would not wait
        numbers = scores.numbers[trace.question_id]
        place = f"{place_of(trace)}: has no trace_number, and the score file"
        if (trace.question_id, None) in scores.scores:
            raise ScoreError(
                f"{place} has rows of its question both for {listed(numbers)} and without a trace;"
                " give the traces a trace_number, or the question rows of one kind"
            )
        if trace.question_id in self.held:
            raise ScoreError(
                f"{place} has rows of its question for {listed(numbers)}; the data set has traces"
                f" of the question already, so which row is this one's is not known: {_REMEDY}"
            )
        if number not in numbers:
            raise ScoreError(
                f"{place} has rows of its question for {listed(numbers)}; in order of appearance,"
                f" from 0, it is {number}: {_REMEDY}"
            )
        self.places.setdefault(trace.question_id, place)
        score, label = self.judge.judge(trace, number)
        dropped = label is None and self.judge.options.missing_score == "drop"
        return replace(prepared, score=score, label=label, waits=False, dropped=dropped)

    def remember(self, question_id: str, place: str) -> None:
        """Know a trace without a number that an earlier run judged."""
        scores = self.judge.scores
        if scores is not None and question_id in scores.numbers:
            text = f"{place}, question {question_id}: has no trace_number, and the score file"
            self.places.setdefault(question_id, text)

    def check(self, traces_of: Mapping[str, int]) -> None:
        """Raise ScoreError where a question has fewer traces than rows, after the last trace."""
        for question_id, place in self.places.items():
            assert self.judge.scores is not None
            numbers = self.judge.scores.numbers[question_id]
            if traces_of[question_id] != len(numbers):
                raise ScoreError(
                    f"{place} has rows of its question for {listed(numbers)}; the files hold"
                    f" {traces_of[question_id]} of them, so which is which is not known: {_REMEDY}"
                )
