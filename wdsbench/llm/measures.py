"""Word-based measures of an answer against references: exact match, token F1, ROUGE-L.

Sources: exact match and F1 are those of the SQuAD 1.1 evaluation script (Rajpurkar et al. 2016,
section 6), with SQuAD 2.0's rule that an empty text matches an empty text only. ROUGE-L is the
F-measure of the longest common subsequence of words (Lin 2004, section 3), words as the package
rouge-score takes them without stemming: runs of letters and digits, in lower case; here of any
script, there of ASCII.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

_ARTICLES: Final = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_WORD: Final = re.compile(r"[^\W_]+")


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


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """Return the best ROUGE-L F-measure of the answer against any reference, 0.0 to 1.0."""
    ours = _WORD.findall(answer.lower())
    return max(
        (_rouge_l(ours, _WORD.findall(reference.lower())) for reference in references), default=0.0
    )


#: The measures by name, in the order of their columns.
MEASURES: Final[dict[str, Callable[[str, Sequence[str]], float]]] = {
    "exact_match": exact_match,
    "token_f1": token_f1,
    "rouge_l": rouge_l,
}


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
    """Return the length of the longest common subsequence, one row of the table at a time."""
    row = [0] * (len(theirs) + 1)
    for word in ours:
        diagonal = 0
        for place, other in enumerate(theirs, start=1):
            above = row[place]
            row[place] = diagonal + 1 if word == other else max(above, row[place - 1])
            diagonal = above
    return row[-1]
