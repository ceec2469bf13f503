"""Joined scores of single files have the bytes of one run."""

from __future__ import annotations

from pathlib import Path

import pytest
from llm.tiny import extract, make_model, make_questions, make_tokenizer

from wdsbench.errors import ScoreError
from wdsbench.llm.questions import digest_of_references
from wdsbench.llm.score import join_parts, remove_parts, score_part, score_traces


@pytest.mark.parametrize(("answers", "traces_per_file"), [(1, 2), (2, 1), (3, 2)])
def test_parts_join_to_the_bytes_of_one_run(
    answers: int, traces_per_file: int, tmp_path: Path
) -> None:
    """Also if some files hold only traces 0 and have no numbers."""
    questions = make_questions(4)
    report = extract(
        make_model(),
        make_tokenizer(),
        questions,
        tmp_path / "traces",
        traces_per_file=traces_per_file,
        max_new_tokens=3,
        decode="sample",
        answers_per_question=answers,
        attention=(),
    )
    score_traces([tmp_path / "traces"], questions, tmp_path / "whole.csv")
    parts = [score_part(file, questions) for file in report.files]
    headers = {part.read_text().splitlines()[0].split(",")[1] for part in parts}
    expected = {1: {"exact_match"}, 2: {"exact_match", "trace"}, 3: {"trace"}}[answers]
    assert headers == expected
    join_parts(parts, tmp_path / "joined.csv")
    assert (tmp_path / "joined.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    remove_parts(tmp_path / "traces")
    assert sorted((tmp_path / "traces").iterdir()) == sorted(report.files)


def test_an_existing_part_is_reused(tmp_path: Path) -> None:
    """Its trace file may be gone."""
    part = tmp_path / ".batch_0001.pkl.gz.scores.csv"
    part.write_text("question_id,exact_match,abstained\nq,1,0\n")
    assert score_part(tmp_path / "batch_0001.pkl.gz", []) == part
    assert part.read_text().endswith("q,1,0\n")


def test_parts_of_another_version_are_refused(tmp_path: Path) -> None:
    parts = [tmp_path / "1.csv", tmp_path / "2.csv"]
    parts[0].write_text("question_id,exact_match,abstained\nq,1,0\n")
    parts[1].write_text("question_id,exact_match,contains,abstained\nr,1,1,0\n")
    with pytest.raises(
        ScoreError, match=r"2\.csv has the columns exact_match, contains, abstained"
    ):
        join_parts(parts, tmp_path / "joined.csv")
    assert not (tmp_path / "joined.csv").exists()


def test_a_part_missing_with_its_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ScoreError, match=r"\.batch_0001\.pkl\.gz\.scores\.csv is gone, and batch_0001"
    ):
        score_part(tmp_path / "batch_0001.pkl.gz", make_questions(1))


def test_references_have_a_digest() -> None:
    assert digest_of_references(make_questions(3)) == digest_of_references(make_questions(3))
    assert digest_of_references(make_questions(3)) != digest_of_references(make_questions(4))
