"""Measures of answers: words shared with references, numbers, abstentions; comparison of measures.

Sources: exact match and F1 follow the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016,
section 6) and the rule of SQuAD 2.0 that an empty text matches only an empty text. ROUGE-L is the
F-measure of the longest common subsequence of words (Lin 2004, section 3), which are those of the
package rouge-score without stemming, but of any script. ``contains`` is the accuracy of PopQA
(Mallen et al. 2023: an answer is right if a reference is a substring of it) at word boundaries, as
EntityQuestions (Sciavolino et al. 2021) matches answers, so that "Iran" is not in "Tirana".
``numeric`` compares numbers as the evaluation script of DROP does (Dua et al. 2019: numbers must be
equal), with units and separators (module ``numbers``). An abstention ("I don't know", an empty
answer) is neither right nor hallucinated; scoring marks it and leaves its score to the user.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.llm.numbers import numbers_in

Column = NDArray[np.float64]

_ARTICLES: Final = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_BLANKS: Final = str.maketrans(string.punctuation, " " * len(string.punctuation))
_WORD: Final = re.compile(r"[^\W_]+")
#: Least share of the rarer label with which a measure separates the answers.
LEAST_SHARE: Final = 0.05
_FEWEST: Final = 2  # answers without which labels are not compared


def normalise_answer(text: str) -> str:
    """Return ``text`` in lower case, without ASCII punctuation and articles, single-spaced."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if the normalised answer equals a normalised reference, else 0.0."""
    normal = normalise_answer(answer)
    return float(any(normal == normalise_answer(reference) for reference in references))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the best F1 of the answer's words against any reference's, 0.0 to 1.0."""
    return max((_f1(answer, reference) for reference in references), default=0.0)


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """Return the best ROUGE-L F-measure of the answer against any reference, 0.0 to 1.0."""
    ours = _WORD.findall(answer.lower())
    return max(
        (_rouge_l(ours, _WORD.findall(reference.lower())) for reference in references), default=0.0
    )


def contains(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if a normalised reference is in the normalised answer at word boundaries.

    Punctuation is removed ("U.S." is in "in the US") or, in both, replaced by blanks ("Paris" is in
    "Paris's" and "Paris-based"). A word boundary is a place beside no letter or digit, so that
    scripts without blanks between words match whole runs only.
    """
    for table in (_PUNCTUATION, _BLANKS):
        ours = _without_marks(answer, table)
        if any(_is_within(_without_marks(reference, table), ours) for reference in references):
            return 1.0
    return 0.0


def numeric(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if all numbers of a reference are among those of the answer, else 0.0.

    NaN (no score) if no reference has a number.
    """
    expected = [numbers for numbers in map(numbers_in, references) if numbers]
    if not expected:
        return math.nan
    found = numbers_in(answer)
    return float(
        any(
            all(any(own.equals(number) for own in found) for number in numbers)
            for numbers in expected
        )
    )


#: The measures by name, in the order of their columns.
MEASURES: Final[dict[str, Callable[[str, Sequence[str]], float]]] = {
    "exact_match": exact_match,
    "token_f1": token_f1,
    "rouge_l": rouge_l,
    "contains": contains,
    "numeric": numeric,
}
#: Measures that are 0 or 1.
BINARY: Final = ("exact_match", "contains", "numeric")


def _without_marks(text: str, table: dict[int, Any]) -> str:
    return normalise_answer(unicodedata.normalize("NFC", text).translate(table))


def _is_within(theirs: str, ours: str) -> bool:
    """Return True if normalised words are in a text at word boundaries; no words: in no text."""
    if not theirs or theirs not in ours:  # most references need no regular expression
        return theirs == ours
    return re.search(rf"(?<!\w){re.escape(theirs)}(?!\w)", ours) is not None


def _f1(answer: str, reference: str) -> float:
    ours, theirs = normalise_answer(answer).split(), normalise_answer(reference).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))


def _rouge_l(ours: Sequence[str], theirs: Sequence[str]) -> float:
    if not ours or not theirs:
        return 0.0
    return 2 * _common_subsequence(ours, theirs) / (len(ours) + len(theirs))


def _common_subsequence(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Return the length of the longest common subsequence; holds one row of the table."""
    row = [0] * (len(theirs) + 1)
    for word in ours:
        diagonal = 0
        for place, other in enumerate(theirs, start=1):
            above = row[place]
            row[place] = diagonal + 1 if word == other else max(above, row[place - 1])
            diagonal = above
    return row[-1]


#: Words that may precede an abstention.
_LEAD: Final = (
    r"(?:(?:well|sorry|unfortunately|i'm sorry|i am sorry|i'm afraid|i am afraid|i apologi[sz]e)"
    r"[\s,.;:]*(?:(?:but|that)\s+)?)*"
)

#: Beginnings of abstentions, with anything after them ("I don't know who that was.").
BEGINNINGS: Final = (
    r"i (?:really )?(?:don't|do not|dont) (?:really )?(?:know|remember|recall)",
    r"i(?:'m| am) not (?:sure|certain|aware)",
    r"i(?:'m| am) unsure",
    r"i(?:'m| am) (?:unable|not able) to (?:answer|say|tell|determine|provide|find)",
    r"i have no (?:idea|comment|information|knowledge|answer)",
    r"i (?:can't|cannot|can not|could not|couldn't) (?:answer|say|tell|determine|provide|find)",
    r"i (?:don't|do not) have (?:any |enough |access )",
    r"(?:there is )?(?:not enough|insufficient) information",
    r"(?:it )?(?:can't|cannot|can not) be (?:determined|answered|known)",
    r"as an? (?:ai|artificial intelligence|language model)\b.*\b(?:can't|cannot|don't|do not)",
)

#: Abstentions only as the whole answer ("Unknown Pleasures" is a record).
WHOLES: Final = (
    r"(?:i )?(?:don't|do not|dont) know",
    r"idk|dunno|n/?a|unknown|unsure|not sure|no idea|no comment|no answer|no clue",
    r"unanswerable|(?:it is |it's )?(?:unknown|unclear|not known)",
)

_APOSTROPHES: Final = str.maketrans({"\u2019": "'", "\u2018": "'", "`": "'"})
_DEFAULT: Final = re.compile(
    rf"{_LEAD}(?:(?:{'|'.join(BEGINNINGS)})|(?:{'|'.join(WHOLES)})[\s.!?]*$)", re.DOTALL
)
_ANYTHING: Final = re.compile(r"\w")


class Abstentions:
    """Recognises abstentions: ``answer in abstentions``.

    ``patterns`` are additional regular expressions, searched in the answer ignoring case.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = []
        for pattern in patterns:
            try:
                self._patterns.append(re.compile(pattern, re.IGNORECASE | re.DOTALL))
            except re.error as error:
                raise ValueError(
                    f"abstention {pattern!r} is not a regular expression: {error}; write for"
                    " example '^pass$'"
                ) from error

    def __contains__(self, answer: str) -> bool:
        """Return True if ``answer`` abstains or has no letter or digit."""
        if not _ANYTHING.search(answer):
            return True
        text = answer.strip().lower().translate(_APOSTROPHES)
        return bool(_DEFAULT.match(text)) or any(one.search(answer) for one in self._patterns)


@dataclass(frozen=True)
class Agreement:
    """Agreement of two measures; None if a measure is constant."""

    first: str
    second: str
    pearson: float | None  # correlation of the scores
    spearman: float | None  # correlation of the ranks; ties have their mean rank
    kappa: float | None  # Cohen's kappa of the labels below the threshold (Cohen 1960)


def agreements(columns: Mapping[str, Column], threshold: float) -> list[Agreement]:
    """Return the agreement of every pair of columns ``[n]``, over the rows where neither is NaN,
    if there is one; the threshold is that of labels.
    """
    found = []
    for first, second in combinations(columns, 2):
        scored = ~(np.isnan(columns[first]) | np.isnan(columns[second]))
        if not scored.any():
            continue
        ours, theirs = columns[first][scored], columns[second][scored]
        found.append(
            Agreement(
                first,
                second,
                correlation(ours, theirs),
                correlation(mean_ranks(ours), mean_ranks(theirs)),
                cohen_kappa(ours < threshold, theirs < threshold),
            )
        )
    return found


@dataclass(frozen=True)
class LabelCount:
    """Labels of the answers that a measure scores."""

    scored: int  # answers with a score
    hallucinated: int  # scores below the threshold

    @property
    def is_one_sided(self) -> bool:
        """True if (nearly) all labels are the same, so that no detector can be trained."""
        rarer = min(self.hallucinated, self.scored - self.hallucinated)
        return self.scored >= _FEWEST and rarer < LEAST_SHARE * self.scored

    @property
    def separates(self) -> bool:
        """True if both labels occur often enough."""
        return self.scored >= _FEWEST and not self.is_one_sided


def label_counts(columns: Mapping[str, Column], threshold: float) -> dict[str, LabelCount]:
    """Return the labels of every column ``[n]``; NaN is no score."""
    return {
        name: LabelCount(int((~np.isnan(values)).sum()), int((values < threshold).sum()))
        for name, values in columns.items()
    }


def label_warnings(counts: Mapping[str, LabelCount]) -> list[str]:
    """Return a sentence for each measure with one-sided labels, naming the measures that are not.

    Measures with scores for less than half of the answers are not recommended.
    """
    most = max((count.scored for count in counts.values()), default=0)
    others = [
        f"{name} ({1 - count.hallucinated / count.scored:.0%} right)"
        for name, count in counts.items()
        if count.separates and 2 * count.scored >= most
    ]
    remedy = (
        f"{' and '.join(others)} separate{'s' if len(others) == 1 else ''} them"
        if others
        else "no measure separates them; add a judge, or check prompts, references and threshold"
    )
    return [
        f"{name} labels {max(count.hallucinated, count.scored - count.hallucinated)} of"
        f" {count.scored} answers"
        f" {'hallucinated' if 2 * count.hallucinated > count.scored else 'right'}; {remedy}."
        for name, count in counts.items()
        if count.is_one_sided
    ]


def correlation(ours: Column, theirs: Column) -> float | None:
    """Return Pearson's r; None if a column is constant."""
    if not ours.size or np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return None
    return float(np.clip(np.corrcoef(ours, theirs)[0, 1], -1, 1))


def mean_ranks(values: Column) -> Column:
    """Return the rank of every value from 0; equal values have their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Column = (ends - (counts + 1) / 2)[inverse]
    return ranks


def cohen_kappa(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float | None:
    """Return agreement beyond chance; None if chance always agrees."""
    if not ours.size:
        return None
    observed = float((ours == theirs).mean())
    a, b = float(ours.mean()), float(theirs.mean())
    chance = a * b + (1 - a) * (1 - b)
    return None if chance == 1 else (observed - chance) / (1 - chance)
