"""`pack`, `relabel` and `unpack` read the scores of `score`: every trace has its own.

The truth is in the samples themselves: each one's answer, as ``meta.json`` holds it, against its
question's reference.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_raw, write_pickle
from llm.tiny import extract, make_model, make_questions, make_tokenizer
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.errors import ScoreError
from wdsbench.llm.measures import exact_match, token_f1
from wdsbench.llm.options import ScoreOptions
from wdsbench.llm.questions import Question
from wdsbench.llm.score import score_traces
from wdsbench.pack import PackOptions, pack
from wdsbench.pack.relabel import relabel
from wdsbench.pack.unpack import unpack
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces

ANSWERS = ("red", "red two", "the red", "two", "I don't know.")


def extracted(folder: Path) -> list[Question]:
    """Write three sampled answers to each question, with their numbers."""
    questions = make_questions(8)
    extract(
        make_model(),
        make_tokenizer(),
        questions,
        folder,
        max_new_tokens=4,
        traces_per_file=4,
        decode="sample",
        seed=3,
        temperature=2.0,
        answers_per_question=3,
    )
    answers = {}
    for path in expand_patterns([folder]):
        for trace in read_traces(path):
            assert trace.trace_number is not None
            if trace.trace_number == int(trace.question_id[1:]) % 3:
                answers[trace.question_id] = trace.answer
    # One of the three is right; which one changes from question to question.
    return [replace(one, references=(answers[one.question_id] or "x",)) for one in questions]


def foreign(folder: Path) -> list[Question]:
    """Write files of separate runs without numbers; one file has a question twice."""
    for number in range(4):
        raws = [
            {
                **make_raw(f"q{i % 9}", seed=100 * number + i),
                "generated_answer_clean": ANSWERS[(number + i * i) % len(ANSWERS)],
            }
            for i in range(number, 12)
        ]
        write_pickle(folder / f"run{number}.pkl", raws)
    return [Question(f"q{i}", "?", ("red",)) for i in range(9)]


def single(folder: Path) -> list[Question]:
    raws = [
        {**make_raw(f"q{i}", seed=i), "generated_answer_clean": ANSWERS[i % len(ANSWERS)]}
        for i in range(20)
    ]
    write_pickle(folder / "a.pkl", raws[:11])
    write_pickle(folder / "b.pkl", raws[11:])
    return [Question(f"q{i}", "?", ("red", "two")) for i in range(20)]


def answers_and_scores(folder: Path) -> list[tuple[str, str, float, float]]:
    """Return (question, answer, score, label) of every sample of a loader."""
    found = []
    for batch in TraceLoader(folder, split=None, fields=("meta",)):
        assert batch.meta is not None
        for row, meta in enumerate(batch.meta):
            values = (float(batch.score[row]), float(batch.label[row]))
            found.append((meta["question_id"], meta["answer"], *values))
    return found


def assert_true(folder: Path, questions: list[Question], measure: Callable[..., float]) -> None:
    """Assert that every sample has the score of its own answer, and that answers differ."""
    references = {question.question_id: question.references for question in questions}
    found = answers_and_scores(folder)
    for question, answer, value, label in found:
        wanted = round(measure(answer, references[question]), 6)
        assert (value, label) == (np.float32(wanted), float(wanted < 0.5)), (question, answer)
    assert {label for *_, label in found} == {0, 1}


def table_of(folder: Path) -> Any:
    return DatasetIndex.open(folder).file.table


@pytest.mark.parametrize("source", [extracted, foreign, single])
def test_score_then_pack_relabel_and_unpack(
    source: Callable[[Path], list[Question]], tmp_path: Path
) -> None:
    raw, scores = tmp_path / "raw", tmp_path / "scores.csv"
    questions = source(raw)
    report = score_traces([raw], questions, scores)
    assert report.several is (source is not single)

    by_f1 = PackOptions(score_column="token_f1", attention=("edges",))
    by_match = replace(by_f1, score_column="exact_match")
    pack([str(raw)], tmp_path / "out", scores=scores, options=by_f1)
    assert_true(tmp_path / "out", questions, token_f1)
    pack([str(raw)], tmp_path / "fresh", scores=scores, options=by_match)
    assert_true(tmp_path / "fresh", questions, exact_match)
    assert table_of(tmp_path / "out") != table_of(tmp_path / "fresh")

    relabelled = relabel(tmp_path / "out", scores, score_column="exact_match")
    assert relabelled.unused == 0
    assert table_of(tmp_path / "out") == table_of(tmp_path / "fresh")

    back = unpack(tmp_path / "out", tmp_path / "back")
    pack([str(tmp_path / "back")], tmp_path / "again", scores=back.scores, options=by_match)
    assert table_of(tmp_path / "again") == table_of(tmp_path / "fresh")
    # The unpacked traces have their numbers, in any order.
    score_traces([tmp_path / "back"], questions, tmp_path / "again.csv")
    assert lines(tmp_path / "again.csv") == lines(scores)


def lines(path: Path) -> set[tuple[str, ...]]:
    with path.open() as file:
        return {tuple(row) for row in csv.reader(file)}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=FULL_ONLY)])
def test_abstentions_that_are_left_out(workers: int, tmp_path: Path) -> None:
    """Later traces keep their numbers, so that the file still matches."""
    raw, scores = tmp_path / "raw", tmp_path / "scores.csv"
    questions = foreign(raw)
    report = score_traces([raw], questions, scores, options=ScoreOptions(abstention_score="none"))
    assert report.abstained > 3
    options = PackOptions(score_column="token_f1", missing_score="drop", attention=())
    packed = pack([str(raw)], tmp_path / "out", scores=scores, options=options, workers=workers)
    assert (packed.samples, packed.dropped) == (report.scored - report.abstained, report.abstained)
    assert_true(tmp_path / "out", questions, token_f1)
    relabel(tmp_path / "out", scores, score_column="exact_match")
    assert_true(tmp_path / "out", questions, exact_match)
    relabel(tmp_path / "out", scores, score_column="rouge_l", threshold=0.9)
    relabel(tmp_path / "out", scores, score_column="token_f1")
    assert_true(tmp_path / "out", questions, token_f1)


@pytest.mark.parametrize("run", [0, 1])
def test_other_files_than_were_scored(run: int, tmp_path: Path) -> None:
    """The first run has the numbers of all runs; the second has not."""
    questions = foreign(tmp_path / "raw")
    score_traces([tmp_path / "raw"], questions, tmp_path / "scores.csv")
    one = str(tmp_path / "raw" / f"run{run}.pkl")
    options = PackOptions(score_column="exact_match")
    with pytest.raises(ScoreError, match="row is not known"):
        pack([one], tmp_path / "out", scores=tmp_path / "scores.csv", options=options)
    score_traces([one], questions, tmp_path / "one.csv")
    pack([one], tmp_path / "out", scores=tmp_path / "one.csv", options=options)
    assert_true(tmp_path / "out", questions, exact_match)
    with pytest.raises(ScoreError, match="row is not known"):
        relabel(tmp_path / "out", tmp_path / "scores.csv", score_column="exact_match")
    assert_true(tmp_path / "out", questions, exact_match)


def test_some_of_the_files_of_numbered_traces(tmp_path: Path) -> None:
    """If traces have numbers, a score file may cover more or other files."""
    questions = extracted(tmp_path / "raw")
    score_traces([tmp_path / "raw"], questions, tmp_path / "scores.csv")
    files = expand_patterns([tmp_path / "raw"])
    options = PackOptions(score_column="exact_match")
    some = [str(files[2]), str(files[5])]
    pack(some, tmp_path / "out", scores=tmp_path / "scores.csv", options=options)
    more = [str(files[1])]
    pack(more, tmp_path / "out", scores=tmp_path / "scores.csv", options=options, append=True)
    assert_true(tmp_path / "out", questions, exact_match)
    report = relabel(tmp_path / "out", tmp_path / "scores.csv", score_column="token_f1")
    assert (report.samples, report.unused) == (12, 24 - 12)
    assert_true(tmp_path / "out", questions, token_f1)
