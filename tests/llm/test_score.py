"""Answers against references: the measures by hand, and whole files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wdsbench.errors import ScoreError, TraceError
from wdsbench.llm.questions import Question
from wdsbench.llm.score import exact_match, normalise_answer, score_traces, token_f1


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


# answer, references, exact match, F1
MEASURES: list[tuple[str, list[str], float, float]] = [
    ("The cat.", ["cat"], 1, 1),
    ("black cat", ["cat"], 0, 2 / 3),
    ("cat cat", ["cat"], 0, 2 / 3),
    ("cat", ["dog", "a cat"], 1, 1),
    ("black cat", ["black dog", "big black cat"], 0, 0.8),
    ("", ["cat"], 0, 0),
    ("cat", ["the"], 0, 0),
    ("", ["the"], 1, 1),
    ("cat", [], 0, 0),
]


@pytest.mark.parametrize(("answer", "references", "exact", "f1"), MEASURES)
def test_measures(answer: str, references: list[str], exact: float, f1: float) -> None:
    assert exact_match(answer, references) == exact
    assert token_f1(answer, references) == pytest.approx(f1)


def write(path: Path, **answers: str) -> None:
    raws: list[dict[str, Any]] = [
        {
            "question_id": name,
            "tokens": [1, 2],
            "hidden_states": np.zeros((1, 2, 3), np.float16),
            "generated_answer_clean": answer,
        }
        for name, answer in answers.items()
    ]
    path.write_bytes(pickle.dumps(raws))


QUESTIONS = [
    Question("b", "?", ("black cat",)),
    Question("a", "?", ("dog", "the cat")),
    Question("ü,1", "?", ("x",)),
    Question("unasked", "?", ()),
    Question("bare", "?", ()),
]


def test_score_file(tmp_path: Path) -> None:
    write(tmp_path / "1.pkl", **{"a": "Cat", "stranger": "?", "b": "cat"})
    write(tmp_path / "2.pkl", **{"ü,1": "y"})
    out = tmp_path / "new" / "scores.csv"
    report = score_traces([tmp_path / "*.pkl"], QUESTIONS, out)
    assert out.read_text(encoding="utf-8") == (
        'question_id,exact_match,token_f1\na,1,1.000000\nb,0,0.666667\n"ü,1",0,0.000000\n'
    )
    assert (report.scored, report.traces_without_question) == (3, 1)
    assert report.questions_without_trace == 2
    assert report.exact_match == pytest.approx(1 / 3)
    assert report.token_f1 == pytest.approx(5 / 9)
    first = out.read_bytes()
    score_traces([tmp_path / "2.pkl", tmp_path / "1.pkl"], QUESTIONS[::-1], out)
    assert out.read_bytes() == first
    assert list(out.parent.iterdir()) == [out]


# (how it is broken, answers, words of the error)
BROKEN: list[tuple[str, list[dict[str, str]], str]] = [
    ("no reference", [{"a": "x", "bare": "y"}], "1 answered questions have no reference (bare)"),
    ("twice", [{"a": "x"}, {"a": "x"}], "question a is answered by an earlier trace already"),
    ("strangers", [{"s1": "x", "s2": "y"}], "no trace's question is among the 5 questions"),
]


@pytest.mark.parametrize(
    ("files", "words"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_what_cannot_be_scored(files: list[dict[str, str]], words: str, tmp_path: Path) -> None:
    for number, answers in enumerate(files):
        write(tmp_path / f"{number}.pkl", **answers)
    with pytest.raises(ScoreError) as caught:
        score_traces([tmp_path], QUESTIONS, tmp_path / "scores.csv")
    assert words in str(caught.value)
    assert not (tmp_path / "scores.csv").exists()


def test_damaged_traces_are_named(tmp_path: Path) -> None:
    (tmp_path / "1.pkl").write_bytes(b"rubbish")
    with pytest.raises(TraceError, match=r"1\.pkl"):
        score_traces([tmp_path], QUESTIONS, tmp_path / "scores.csv")
