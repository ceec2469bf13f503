"""Score files of answers and references."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llm.test_judge import save as save_judge

from wdsbench.cli.main import main
from wdsbench.errors import ScoreError, TraceError
from wdsbench.llm.options import ScoreOptions
from wdsbench.llm.questions import Question
from wdsbench.llm.score import score_traces
from wdsbench.traces.scores import read_scores


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
    Question("ü,1", "?", ("x 7",)),
    Question("unasked", "?", ()),
    Question("bare", "?", ()),
]


def test_score_file(tmp_path: Path) -> None:
    write(tmp_path / "1.pkl", **{"a": "Cat", "stranger": "?", "b": "cat"})
    write(tmp_path / "2.pkl", **{"ü,1": "y"})
    out = tmp_path / "new" / "scores.csv"
    report = score_traces([tmp_path / "*.pkl"], QUESTIONS, out)
    assert out.read_text(encoding="utf-8") == (
        "question_id,exact_match,token_f1,rouge_l,contains,numeric,abstained\n"
        "a,1,1.000000,0.666667,1,,0\n"
        "b,0,0.666667,0.666667,0,,0\n"
        '"ü,1",0,0.000000,0.000000,0,0,0\n'
    )
    assert (report.scored, report.traces_without_question) == (3, 1)
    assert report.questions_without_trace == 2
    assert report.exact_match == pytest.approx(1 / 3)
    assert report.token_f1 == pytest.approx(5 / 9)
    first = out.read_bytes()
    score_traces([tmp_path / "2.pkl", tmp_path / "1.pkl"], QUESTIONS[::-1], out)
    assert out.read_bytes() == first
    assert list(out.parent.iterdir()) == [out]


def write_numbered(path: Path, *answers: tuple[str, int | None, str]) -> None:
    raws: list[dict[str, Any]] = [
        {
            "question_id": name,
            "tokens": [1, 2],
            "hidden_states": np.full((1, 2, 3), place, np.float16),
            "generated_answer_clean": answer,
            "trace_number": number,
        }
        for place, (name, number, answer) in enumerate(answers)
    ]
    path.write_bytes(pickle.dumps(raws))


@pytest.mark.parametrize("said", [True, False])
def test_several_answers_to_a_question(said: bool, tmp_path: Path) -> None:
    """By their numbers, or in the order of appearance."""
    answers = [("a", 0, "cat"), ("a", 1, "dog"), ("b", 0, "black cat"), ("a", 2, "cow")]
    write_numbered(
        tmp_path / "1.pkl", *((name, number if said else None, x) for name, number, x in answers)
    )
    report = score_traces([tmp_path], QUESTIONS, tmp_path / "s.csv")
    assert report.several
    assert [line.split(",")[:3] for line in (tmp_path / "s.csv").read_text().splitlines()] == [
        ["question_id", "trace", "exact_match"],
        ["a", "0", "1"],
        ["a", "1", "1"],
        ["b", "0", "1"],
        ["a", "2", "0"],
    ]


class Constant:
    cut = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def score(self, answers: Any, references: Any, progress: Any) -> list[float]:  # noqa: ARG002
        return [self.value] * len(answers)


@pytest.mark.parametrize(
    ("score", "cells", "mean"),
    [("keep", ["0", "0.250000"], 0.25), ("none", ["", ""], 0.25), (1, ["1", "1.000000"], 0.625)],
)
def test_abstentions(score: Any, cells: list[str], mean: float, tmp_path: Path) -> None:
    write(tmp_path / "1.pkl", **{"a": "cat", "b": "I don't know."})
    options = ScoreOptions(abstention_score=score)
    judges = {"bleurt_score": Constant(0.25)}
    report = score_traces([tmp_path], QUESTIONS, tmp_path / "s.csv", options, judges=judges)
    head, answer, abstention = (
        line.split(",") for line in (tmp_path / "s.csv").read_text().splitlines()
    )
    assert head == [
        "question_id",
        "exact_match",
        "token_f1",
        "rouge_l",
        "contains",
        "numeric",
        "bleurt_score",
        "abstained",
    ]
    assert (answer[1], answer[-2:]) == ("1", ["0.250000", "0"])
    assert [abstention[1], abstention[-2]] == cells
    assert abstention[-1] == "1"
    assert report.abstained == 1
    assert report.means["bleurt_score"] == pytest.approx(mean)
    assert len(report.agreement) == 10  # numeric has no score
    # As packing reads it.
    table, column = read_scores(tmp_path / "s.csv")
    assert column == "bleurt_score"
    assert table.of("a", None) == 0.25
    assert table.of("b", None) == (None if score == "none" else float(cells[1]))


def test_own_abstentions(tmp_path: Path) -> None:
    write(tmp_path / "1.pkl", **{"a": "cat", "b": "pass"})
    options = ScoreOptions(abstention=("^pass$",))
    assert score_traces([tmp_path], QUESTIONS, tmp_path / "s", options=options).abstained == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"abstention_score": "wrong"}, "abstention_score is 'wrong'; expected keep, none or"),
        ({"abstention_score": float("nan")}, "abstention_score is nan"),
    ],
)
def test_bad_options(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ScoreOptions(**changes)


def test_a_model_that_gives_nan(tmp_path: Path) -> None:
    write(tmp_path / "1.pkl", a="cat")
    for name, error, words in (
        ("m", ScoreError, "model m gives NaN"),
        ("token_f1", ValueError, "model name 'token_f1' is empty or reserved"),
    ):
        with pytest.raises(error, match=words):
            score_traces(
                [tmp_path],
                QUESTIONS,
                tmp_path / "s.csv",
                judges={name: Constant(float("nan"))},
            )


def test_the_same_number_twice(tmp_path: Path) -> None:
    write_numbered(tmp_path / "1.pkl", ("a", 1, "x"), ("a", 1, "y"))
    with pytest.raises(
        ScoreError, match=r"question a, trace number 1, is also in .*1\.pkl, trace 0"
    ):
        score_traces([tmp_path], QUESTIONS, tmp_path / "s.csv")


# (how it is broken, answers, words of the error)
BROKEN: list[tuple[str, list[dict[str, str]], str]] = [
    ("no reference", [{"a": "x", "bare": "y"}], "1 answered questions have no reference (bare)"),
    ("twice", [{"a": "x"}, {"a": "x"}], "question a is answered by an earlier trace already"),
    ("strangers", [{"s1": "x", "s2": "y"}], "no trace's question is among the 5 questions"),
]


@pytest.mark.parametrize(
    ("files", "words"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_unusable_traces_and_questions(
    files: list[dict[str, str]], words: str, tmp_path: Path
) -> None:
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


def score(folder: Path, *options: str) -> int:
    words = ["--traces", str(folder / "1.pkl"), "--questions", str(folder / "q.csv")]
    with pytest.raises(SystemExit) as ended:
        main(["score", *words, "--out", str(folder / "s.csv"), *options])
    code = ended.value.code
    return code if isinstance(code, int) else int(code is not None)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "1.pkl", **{"a": "red cat", "b": "pass", "c": "blue"})
    (tmp_path / "q.csv").write_text(
        "question_id,question,reference\na,?,red\nb,?,blue\nc,?,blue|green\n"
    )
    model = save_judge(tmp_path / "My-BLEURT.2", ["LABEL_0"])
    words = ("--model", str(model), "--model", f"other={model}", "--abstention", "^pass$")
    assert score(tmp_path, *words, "--abstention-score", "1", "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["scored"], report["abstained"]) == (3, 1)
    names = ["exact_match", "token_f1", "rouge_l", "contains", "numeric", "bleurt_score", "other"]
    assert list(report["means"]) == sorted(names)
    assert report["exact_match"] == pytest.approx(2 / 3)
    same = [pair for pair in report["agreement"] if pair["first"] == "bleurt_score"]
    assert same[0]["second"] == "other"
    assert same[0]["pearson"] == pytest.approx(1)
    header = (tmp_path / "s.csv").read_text().splitlines()[0]
    assert header == ",".join(["question_id", *names, "abstained"])
    assert score(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "3 answers: exact match 0.333" in shown
    assert "contains       mean 0.667, 1 of 3 hallucinated" in shown
    assert "numeric        no scores" in shown
    assert "exact_match / token_f1" in shown


def test_answers_in_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exact match finds none of them; the measure that does is named."""
    write(
        tmp_path / "1.pkl",
        **{"a": "I think that it is red.", "b": "It is pink.", "c": "I don't know"},
    )
    (tmp_path / "q.csv").write_text(
        "question_id,question,reference\na,?,red\nb,?,blue\nc,?,blue|green\n"
    )
    warning = "exact_match labels 2 of 2 answers hallucinated; contains (50% right)"
    assert score(tmp_path) == 0
    assert f"  warning: {warning}" in capsys.readouterr().out
    assert score(tmp_path, "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["warnings"][0].startswith(warning)
    assert report["labels"]["contains"] == {"scored": 2, "hallucinated": 1}
    assert report["numeric"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--abstention", "("], "is not a regular expression"),
        (["--abstention-score", "wrong"], "abstention_score is 'wrong'"),
        (["--model", "./missing"], "there is no such folder"),
        (["--model", "./m", "--model", "./m"], "name each by --model COLUMN=PATH"),
        (["--threshold", "nan"], "threshold is nan; must be finite"),
        (["--threshold", "inf"], "threshold is inf"),
        (["--out", "."], ". is a folder; give the name of a file"),
        (["--out", f"{__file__}/s.csv"], f"{__file__} is a file; choose another place"),
    ],
)
def test_errors_are_one_line(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "1.pkl", a="x")
    (tmp_path / "q.csv").write_text("question_id,question,reference\na,?,red\n")
    assert score(tmp_path, *options) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "s.csv").exists()
