"""Score files: which column, and every way a line can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from wdsbench.errors import ScoreError
from wdsbench.pack.scores import label_of, read_scores


def written(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "scores.csv"
    path.write_text(text, encoding=encoding)
    return path


def test_bleurt_score_is_the_default_column(tmp_path: Path) -> None:
    path = written(tmp_path, "question_id,other,bleurt_score\nq1,9,0.25\n007,9,-1\n")
    assert read_scores(path) == ({"q1": 0.25, "007": -1.0}, "bleurt_score")


def test_the_only_column_needs_no_name(tmp_path: Path) -> None:
    assert read_scores(written(tmp_path, "question_id,rouge\nq,1\n")) == ({"q": 1.0}, "rouge")


def test_a_column_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, "a,question_id,b\n1,q,2\n")
    assert read_scores(path, "b") == ({"q": 2.0}, "b")


def test_a_byte_order_mark_is_no_part_of_the_name(tmp_path: Path) -> None:
    path = written(tmp_path, "question_id,s\nq,1\n", encoding="utf-8-sig")
    assert read_scores(path)[0] == {"q": 1.0}


def test_the_same_score_twice_is_fine(tmp_path: Path) -> None:
    assert read_scores(written(tmp_path, "question_id,s\nq,1\nq,1.0\n"))[0] == {"q": 1.0}


def test_an_empty_cell_is_no_score(tmp_path: Path) -> None:
    path = written(tmp_path, "question_id,s\nq,1\np,\n")
    assert read_scores(path)[0] == {"q": 1.0}


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("question_id,s,s\nq,1,2\n", "s", "column 's' stands twice"),
        ("", None, "no column 'question_id'"),
        ("id,s\nq,1\n", None, "no column 'question_id'"),
        ("question_id,a,b\nq,1,2\n", None, "no score column 'bleurt_score' among .*--score-column"),
        ("question_id,a\nq,1\n", "b", "no score column 'b'"),
        ("question_id,s\nq,one\n", None, "line 2: s 'one' is not a finite number"),
        ("question_id,s\nq,1\np,nan\n", None, "line 3: s 'nan' is not a finite number"),
        ("question_id,s\nq\n", None, "line 2: needs a question_id and a s"),
        ("question_id,s\n,1\n", None, "line 2: needs a question_id"),
        ("question_id,s\nq,1\nq,2\n", None, "line 3: question 'q' has scores 1.0 and 2.0"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, column: str | None, words: str) -> None:
    with pytest.raises(ScoreError, match=words):
        read_scores(written(tmp_path, text), column)


def test_other_encodings_and_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ScoreError, match="not a UTF-8 CSV"):
        read_scores(written(tmp_path, "question_id,s\nq\xe9,1\n", encoding="latin-1"))
    with pytest.raises(ScoreError, match="cannot read scores"):
        read_scores(tmp_path / "none.csv")


@pytest.mark.parametrize(("score", "label"), [(0.49, 1.0), (0.5, 0.0), (0.51, 0.0)])
def test_a_label_is_one_below_the_threshold(score: float, label: float) -> None:
    assert label_of(score, 0.5) == label
