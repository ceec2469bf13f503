"""Score files: which column, and every way a line can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wdsbench.errors import ScoreError
from wdsbench.traces.scores import label_of, read_scores


def written(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "scores.csv"
    path.write_text(text, encoding=encoding)
    return path


def scores_of(path: Path, column: str | None = None) -> tuple[dict[Any, float | None], str]:
    """Return what a file says, by question where it has no trace numbers."""
    table, used = read_scores(path, column)
    return {
        q if number is None else (q, number): s for (q, number), s in table.scores.items()
    }, used


def test_bleurt_score_is_the_default_column(tmp_path: Path) -> None:
    path = written(tmp_path, "question_id,other,bleurt_score\nq1,9,0.25\n007,9,-1\n")
    assert scores_of(path) == ({"q1": 0.25, "007": -1.0}, "bleurt_score")


def test_the_only_column_needs_no_name(tmp_path: Path) -> None:
    assert scores_of(written(tmp_path, "question_id,rouge\nq,1\n")) == ({"q": 1.0}, "rouge")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("question_id,trace,rouge\nq,0,0.5\n", ({("q", 0): 0.5}, "rouge")),
        ("rouge,trace,abstained,question_id\n0.5,0,1,q\n", ({("q", 0): 0.5}, "rouge")),
        ("question_id,rouge,abstained\nq,0.5,1\n", ({"q": 0.5}, "rouge")),
        ("question_id,a,trace,bleurt_score\nq,9,0,0.5\n", ({("q", 0): 0.5}, "bleurt_score")),
    ],
)
def test_trace_and_abstained_are_no_scores(tmp_path: Path, text: str, wanted: object) -> None:
    assert scores_of(written(tmp_path, text)) == wanted


def test_abstained_is_a_score_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, "question_id,a,abstained\nq,1,0\n")
    assert scores_of(path, "abstained") == ({"q": 0.0}, "abstained")


def test_a_column_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, "a,question_id,b\n1,q,2\n")
    assert scores_of(path, "b") == ({"q": 2.0}, "b")


def test_a_byte_order_mark_is_no_part_of_the_name(tmp_path: Path) -> None:
    path = written(tmp_path, "question_id,s\nq,1\n", encoding="utf-8-sig")
    assert scores_of(path)[0] == {"q": 1.0}


def test_the_same_score_twice_is_fine(tmp_path: Path) -> None:
    assert scores_of(written(tmp_path, "question_id,s\nq,1\nq,1.0\n"))[0] == {"q": 1.0}
    path = written(tmp_path, "question_id,trace,s\nq,1,1\nq,01,1\nq,0,2\n")
    assert scores_of(path)[0] == {("q", 1): 1.0, ("q", 0): 2.0}


def test_an_empty_cell_is_no_score(tmp_path: Path) -> None:
    path = written(tmp_path, "question_id,s\nq,1\np,\np, \nr,\nr,2\nr,\n")
    assert scores_of(path)[0] == {"q": 1.0, "p": None, "r": 2.0}


def test_rows_of_traces(tmp_path: Path) -> None:
    """A trace's own row counts, else the one for all; pandas writes integers beside gaps as 2.0."""
    text = "question_id,trace,s\na,2.0,0.5\na,,0.25\na,0,\nb,4294967295,1\nc,,0.75\n"
    table, _ = read_scores(written(tmp_path, text))
    assert table.numbers == {"a": (0, 2), "b": (2**32 - 1,)}
    assert [table.of("a", number) for number in (2, 1, 0, None)] == [0.5, 0.25, None, 0.25]
    assert [table.of("b", number) for number in (2**32 - 1, 0, None)] == [1.0, None, None]
    assert [table.of("c", number) for number in (7, None)] == [0.75, 0.75]
    assert table.of("d", 0) is None


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("question_id,s,s\nq,1,2\n", "s", "column 's' appears twice"),
        ("", None, "no column 'question_id'"),
        ("id,s\nq,1\n", None, "no column 'question_id'"),
        ("question_id,a,b\nq,1,2\n", None, "no score column 'bleurt_score' among .*--score-column"),
        ("question_id,a\nq,1\n", "b", "no score column 'b'"),
        ("question_id,s\nq,one\n", None, "line 2: s 'one' is not a finite number"),
        ("question_id,s\nq,1\np,nan\n", None, "line 3: s 'nan' is not a finite number"),
        ("question_id,s\nq\n", None, "line 2: needs a question_id and a s"),
        ("question_id,s\n1,000,0.9\n", None, "line 2: more cells than the header; quote"),
        ("question_id,s\n,1\n", None, "line 2: needs a question_id"),
        ("question_id,s\nq,1\nq,2\n", None, "line 3: question 'q' has scores 1.0 and 2.0"),
        ("question_id,trace,s\nq,,1\nq, ,2\n", None, "line 3: question 'q' has scores 1.0 and 2"),
        ("question_id,trace,s\nq,3,1\nq,3,2\n", None, "line 3: question 'q', trace 3, has scores"),
        ("question_id,trace,s\nq,0,1\nq,-1,2\n", None, "line 3: trace '-1' is not an integer in 0"),
        ("question_id,trace,s\nq,1.5,1\n", None, "line 2: trace '1.5' is not an integer"),
        ("question_id,trace,s\nq,one,1\n", None, "line 2: trace 'one' is not an integer"),
        ("question_id,trace,s\nq,\u0661,1\n", None, "line 2: trace '\u0661' is not an integer"),
        ("question_id,trace,s\nq,4294967296,1\n", None, "line 2: trace '4294967296' is not an"),
        (f"question_id,trace,s\nq,{'9' * 5000},1\n", None, "line 2: trace '9999"),
        ("question_id,s,trace\nq,1\n", None, "line 2: needs a question_id and a trace and a s"),
        (
            "question_id,s,trace\nq,1,0\n",
            "trace",
            "column 'trace' identifies the trace.*'s'.*--score-c",
        ),
        ("question_id,s\nq,1\n", "question_id", "column 'question_id' identifies the trace"),
        ("question_id,trace\nq,1\n", None, r"no score column 'bleurt_score' among \[\]"),
        ("question_id,abstained\nq,1\n", None, r"no score column 'bleurt_score' among"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, column: str | None, words: str) -> None:
    with pytest.raises(ScoreError, match=words):
        read_scores(written(tmp_path, text), column)


def test_groups(tmp_path: Path) -> None:
    text = "question_id,trace,s,topic\na,0,1,x\na,1,0,x\nb,0,1,y\n"
    table, column = read_scores(written(tmp_path, text), group="topic")
    assert (table.groups, column) == ({"a": "x", "b": "y"}, "s")
    for wrong, words in (
        (text.replace("a,1,0,x", "a,1,0,y"), "line 3: question 'a' has groups 'x' and 'y'"),
        (text.replace("b,0,1,y", "b,0,1,"), "line 4: question 'b' has no group"),
        (text.replace("topic", "kind"), r"no column 'topic' among .*'kind'.*--group"),
    ):
        with pytest.raises(ScoreError, match=words):
            read_scores(written(tmp_path, wrong), "s", "topic")


def test_other_encodings_and_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ScoreError, match="not a UTF-8 CSV"):
        read_scores(written(tmp_path, "question_id,s\nq\xe9,1\n", encoding="latin-1"))
    with pytest.raises(ScoreError, match="cannot read scores"):
        read_scores(tmp_path / "none.csv")


@pytest.mark.parametrize(("score", "label"), [(0.49, 1.0), (0.5, 0.0), (0.51, 0.0)])
def test_a_label_is_one_below_the_threshold(score: float, label: float) -> None:
    assert label_of(score, 0.5) == label
