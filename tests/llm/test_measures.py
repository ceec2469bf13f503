"""Measures against values computed by hand, agreement, abstentions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wdsbench.llm.measures import (
    Abstentions,
    agreements,
    cohen_kappa,
    contains,
    correlation,
    exact_match,
    label_counts,
    label_warnings,
    mean_ranks,
    normalise_answer,
    numeric,
    rouge_l,
    token_f1,
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat!", "cat"),
        ("an  apple, a day", "apple day"),
        ("theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("Straße\tÜber", "straße über"),
        ("the", ""),
        ("a\u00a0b", "b"),
        ("", ""),
    ],
)
def test_normalise_answer(text: str, normal: str) -> None:
    assert normalise_answer(text) == normal


# answer, references, exact match, F1, ROUGE-L
MEASURES: list[tuple[str, list[str], float, float, float]] = [
    ("The cat.", ["cat"], 1, 1, 2 / 3),
    ("black cat", ["cat"], 0, 2 / 3, 2 / 3),
    ("cat cat", ["cat"], 0, 2 / 3, 2 / 3),
    ("cat", ["dog", "a cat"], 1, 1, 2 / 3),
    ("black cat", ["black dog", "big black cat"], 0, 0.8, 0.8),
    ("", ["cat"], 0, 0, 0),
    ("cat", ["the"], 0, 0, 0),
    ("", ["the"], 1, 1, 0),
    ("cat", [], 0, 0, 0),
    # The classic of Lin 2004: four words, of which three in order.
    ("police kill the gunman", ["police killed the gunman"], 0, 2 / 3, 3 / 4),
    ("the gunman kill police", ["police killed the gunman"], 0, 2 / 3, 2 / 4),
    ("New-York, 1999!", ["york new 1999"], 0, 0.4, 2 / 3),
    ("Ünn", ["ünn"], 1, 1, 1),
]


@pytest.mark.parametrize(("answer", "references", "exact", "f1", "rouge"), MEASURES)
def test_measures(
    answer: str, references: list[str], exact: float, f1: float, rouge: float
) -> None:
    assert exact_match(answer, references) == exact
    assert token_f1(answer, references) == pytest.approx(f1)
    assert rouge_l(answer, references) == pytest.approx(rouge)


# answer, references, contains
CONTAINED: list[tuple[str, list[str], float]] = [
    ("The native language of Swedes is Swedish.", ["Swedish"], 1),
    ("The native language of Swedes is Swedish.", ["Swede", "wedish", "native tongue"], 0),
    ("It is the capital of Albania, Tirana.", ["Iran"], 0),
    ("He lives in New York City.", ["the new york"], 1),
    ("New, York", ["York New"], 0),
    ("Made in the U.S.", ["US"], 1),
    ("Paris's Louvre", ["Paris"], 1),
    ("A Paris-based firm", ["Paris"], 1),
    ("\u00abParis\u00bb", ["paris"], 1),
    ("Sa\u0303o Paulo is large", ["s\u00e3o paulo"], 1),
    ("C++ (2011)", ["c"], 1),
    ("an answer", ["the"], 0),
    ("the", ["a"], 1),
    ("", ["cat"], 0),
    ("cat", [], 0),
]


@pytest.mark.parametrize(("answer", "references", "wanted"), CONTAINED)
def test_contains(answer: str, references: list[str], wanted: float) -> None:
    assert contains(answer, references) == wanted


# answer, references, numeric
NUMBERS: list[tuple[str, list[str], float]] = [
    ("About 1,234,567 people live there.", ["1234567"], 1),
    ("It has 2 moons, not 3.", ["3 moons"], 1),
    ("It is 5 km long.", ["5000 m", "7"], 1),
    ("It is 5 km long.", ["5 miles"], 0),
    ("It was on May 4, 1999.", ["4 May 1999"], 1),
    ("It was in 1999.", ["4 May 1999"], 0),
    ("It was in 1999.", ["June", "4 May 1999"], 0),
    ("I forgot.", ["5"], 0),
    ("5", ["five"], math.nan),
    ("5", [], math.nan),
]


@pytest.mark.parametrize(("answer", "references", "wanted"), NUMBERS)
def test_numeric(answer: str, references: list[str], wanted: float) -> None:
    assert numeric(answer, references) == pytest.approx(wanted, nan_ok=True)


def one_sided(**columns: list[float]) -> list[str]:
    arrays = {name: np.array(values) for name, values in columns.items()}
    return label_warnings(label_counts(arrays, 0.5))


def test_one_sided_labels_are_named_with_a_measure_that_separates() -> None:
    half = [0.0, 1.0] * 20
    assert one_sided(a=half, b=[0.5] * 2 + [0.4] * 38) == []  # 5 % are enough
    assert one_sided(a=[0.5] + [0.4] * 39, b=half, c=[0.0, 0.0, 0.0, 1.0] * 10) == [
        "a labels 39 of 40 answers hallucinated; b (50% right) and c (25% right) separate them."
    ]
    empty = [math.nan] * 40
    few = [0.0, 1.0, *empty[2:]]
    (all_right,) = one_sided(a=[1.0] * 40, few=few, none=empty)
    assert all_right.startswith("a labels 40 of 40 answers right; no measure separates them; add")
    assert one_sided(a=[0.0]) == []  # one answer has one label


def test_agreement_is_that_of_answers_with_both_scores() -> None:
    (pair,) = agreements({"a": np.array([0.0, 1, 0, 1]), "b": np.array([0, 1, math.nan, 1])}, 0.5)
    assert (pair.pearson, pair.kappa) == pytest.approx((1, 1))


def test_agreement_by_hand() -> None:
    columns = {
        "a": np.array([0.0, 0.2, 0.8, 1.0]),
        "b": np.array([0.0, 0.6, 0.6, 9.0]),
        "c": np.array([1.0, 1.0, 1.0, 1.0]),
    }
    first, second, third = agreements(columns, 0.5)
    assert (first.first, first.second) == ("a", "b")
    assert first.pearson == pytest.approx(np.corrcoef(columns["a"], columns["b"])[0, 1])
    # Ranks 0 1 2 3 against 0 1.5 1.5 3.
    assert first.spearman == pytest.approx(4.5 / np.sqrt(5 * 4.5))
    # Labels 1 1 0 0 against 1 0 0 0: three of four agree, by chance a half.
    assert first.kappa == pytest.approx(0.5)
    assert (second.pearson, second.spearman, second.kappa) == (None, None, 0)
    assert third.pearson is None


def test_agreement_of_a_measure_with_itself() -> None:
    values = np.random.default_rng(0).random(50)
    (same,) = agreements({"a": values, "b": values}, 0.5)
    assert (same.pearson, same.spearman, same.kappa) == pytest.approx((1, 1, 1))
    (turned,) = agreements({"a": values, "b": 1 - values}, 0.5)
    assert (turned.pearson, turned.spearman) == pytest.approx((-1, -1))


def test_agreement_of_nothing() -> None:
    nothing = np.zeros(0)
    assert correlation(nothing, nothing) is None
    assert cohen_kappa(nothing < 1, nothing < 1) is None
    assert cohen_kappa(np.zeros(3) < 1, np.zeros(3) < 1) is None  # chance alone agrees
    assert mean_ranks(np.array([3.0, 1.0, 3.0])).tolist() == [1.5, 0, 1.5]


ABSTENTIONS = [
    "",
    " . ",
    "I don't know",
    "I don\u2019t know who that was.",
    "i do not know.",
    "Don't know",
    "Sorry, but I don't really know.",
    "I'm sorry, but I cannot answer that.",
    "I'm not sure, maybe Paris?",
    "I have no comment.",
    "No comment",
    "Unknown.",
    "N/A",
    "It cannot be determined from this.",
    "There is not enough information to say.",
    "As an AI language model, I don't have opinions.",
    "Unfortunately I am unable to answer.",
]
ANSWERS = [
    "Unknown Pleasures",
    "Socrates, who said I know that I know nothing",
    "0",
    "None",
    "No Country for Old Men",
    "Know Your Enemy",
    "Sure",
    "The Unsure Start",
    "I Can't Get No Satisfaction",
    "We don't know each other",
]


def test_abstentions() -> None:
    known = Abstentions()
    assert [text for text in ABSTENTIONS if text not in known] == []
    assert [text for text in ANSWERS if text in known] == []


def test_own_abstentions() -> None:
    known = Abstentions(["^pass$", "ask someone else"])
    assert "Pass" in known
    assert "You should ask SOMEONE else." in known
    assert "Passau" not in known
    with pytest.raises(ValueError, match=r"abstention '\(' is not a regular expression"):
        Abstentions(["("])
