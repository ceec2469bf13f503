"""Score files by trace, in packing: stated numbers, numbers by order of appearance, and every way
in which it cannot be known which row is which trace's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import make_raw, write_pickle
from trials import FULL_ONLY

from wdsbench.errors import ScoreError, TraceError
from wdsbench.pack import PackOptions, pack
from wdsbench.pack.relabel import relabel
from wdsbench.shards.read.index import DatasetIndex

#: Traces of a file, in order: (question, trace number or None).
Traces = list[tuple[str, int | None]]


def write_files(folder: Path, *files: Traces, first: int = 0) -> str:
    """Write raw files ``f0.pkl``, ... and return the pattern that finds them all."""
    for place, traces in enumerate(files, first):
        raws = []
        for position, (question, number) in enumerate(traces):
            stated = {} if number is None else {"trace_number": number}
            raws.append({**make_raw(question, seed=place * 100 + position), **stated})
        write_pickle(folder / f"f{place}.pkl", raws)
    return str(folder / "f*.pkl")


def write_rows(path: Path, *rows: tuple[str, object, object]) -> Path:
    lines = [",".join(map(str, row)) for row in [("question_id", "trace", "s"), *rows]]
    path.write_text("\n".join(lines) + "\n")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def scores_of(folder: Path) -> dict[tuple[str, int], float | None]:
    """Return the score of every sample by question and trace number; None where there is none."""
    index = DatasetIndex.open(folder)
    columns = (index.columns["trace"].tolist(), index.columns["score"].tolist())
    return {
        (index.question_id(row), number): score if score == score else None
        for row, (number, score) in enumerate(zip(*columns, strict=True))
    }


def test_stated_numbers_have_their_rows(tmp_path: Path) -> None:
    """In any order, with gaps; a row without a number is of traces that have none of their own."""
    files = write_files(tmp_path, [("a", 3), ("a", 0), ("b", 1)], [("a", 1), ("c", 7)])
    rows = write_rows(
        tmp_path / "s.csv",
        *[("a", 0, 0.25), ("c", "", 1), ("a", 3, 0.5), ("a", "", 0.75), ("b", 1, 0), ("z", 0, 1)],
    )
    pack([files], tmp_path / "out", scores=rows)
    wanted = {("a", 0): 0.25, ("a", 1): 0.75, ("a", 3): 0.5, ("b", 1): 0, ("c", 7): 1}
    assert scores_of(tmp_path / "out") == wanted


def test_one_row_serves_traces_without_a_number(tmp_path: Path) -> None:
    files = write_files(tmp_path, [("a", None), ("b", 0)], [("a", None), ("b", 1)])
    rows = write_rows(tmp_path / "s.csv", ("a", "", 0.5), ("b", 1, 0.25), ("b", 0, 0.75))
    pack([files], tmp_path / "out", scores=rows)
    wanted = {("a", 0): 0.5, ("a", 1): 0.5, ("b", 0): 0.75, ("b", 1): 0.25}
    assert scores_of(tmp_path / "out") == wanted


def test_an_empty_score_of_a_trace_is_none_and_no_other_row_is_taken(tmp_path: Path) -> None:
    files = write_files(tmp_path, [("a", 0), ("a", 1), ("b", 0)])
    rows = write_rows(tmp_path / "s.csv", ("a", 0, ""), ("a", "", 0.5), ("b", 0, 1))
    with pytest.raises(
        ScoreError, match=r"f0\.pkl, trace 0, question a: .*has no score for it, tr"
    ):
        pack([files], tmp_path / "out", scores=rows)
    pack([files], tmp_path / "out", scores=rows, options=PackOptions(missing_score="keep"))
    assert scores_of(tmp_path / "out") == {("a", 0): None, ("a", 1): 0.5, ("b", 0): 1}


def test_a_trace_without_a_row_names_the_rows_there_are(tmp_path: Path) -> None:
    files = write_files(tmp_path, [("a", 0), ("a", 2)])
    rows = write_rows(tmp_path / "s.csv", ("a", 0, 1), ("a", 1, 1))
    words = r"trace 1, question a: .*no score for it, trace 2 of its question \(it has rows of tra"
    with pytest.raises(ScoreError, match=words):
        pack([files], tmp_path / "out", scores=rows)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=FULL_ONLY), 2])
def test_traces_without_numbers_in_order_of_appearance(workers: int, tmp_path: Path) -> None:
    files = write_files(
        tmp_path,
        *([("a", None), ("b", None), ("a", None)], [("b", None), ("c", None)]),
        *([("a", None)], [("d", 4), ("d", None)]),
    )
    wanted = {
        **{("a", 0): 0.125, ("a", 1): 0.25, ("a", 2): 0.375, ("b", 0): 0.5, ("b", 1): 0.625},
        **{("c", 0): 0.75, ("d", 4): 0.875, ("d", 1): 1.0},
    }
    rows = write_rows(tmp_path / "s.csv", *((*key, score) for key, score in wanted.items()))
    pack([files], tmp_path / "out", scores=rows, workers=workers)
    assert scores_of(tmp_path / "out") == wanted
    provenance = DatasetIndex.open(tmp_path / "out").file.provenance
    assert provenance.numbered == 7  # d's 4 is its own


#: (what is wrong, files, rows, words of the error)
UNKNOWN: list[tuple[str, list[Traces], list[tuple[str, object, object]], str]] = [
    (
        "one file of three that were scored",
        [[("b", None), ("a", None)]],
        [("b", 0, 1), ("a", 0, 0), ("a", 1, 1), ("a", 2, 1)],
        r"f0\.pkl, trace 1, question a: has no trace_number, .* for traces 0, 1, 2; the files hold"
        r" 1 of them, .* give the traces a trace_number, or score the files that are packed",
    ),
    (
        "one file of two was scored",
        [[("a", None)], [("a", None)]],
        [("a", 0, 0)],
        r"f1\.pkl, trace 0, question a: .* for trace 0; in order of appearance, from 0, it is 1: ",
    ),
    (
        "numbered from 1",
        [[("a", None), ("a", None)]],
        [("a", 1, 0), ("a", 2, 0)],
        r"f0\.pkl, trace 0, question a: .* for traces 1, 2; in order of appearance, from 0, it",
    ),
    (
        "with and without a number",
        [[("a", None), ("a", None)]],
        [("a", 0, 0), ("a", "", 1)],
        r"f0\.pkl, trace 0, question a: .* both for trace 0 and without a trace; give the traces",
    ),
]


@pytest.mark.parametrize(
    ("files", "rows", "words"), [row[1:] for row in UNKNOWN], ids=[row[0] for row in UNKNOWN]
)
@pytest.mark.parametrize(
    "missing_score", ["keep", *(pytest.param(each, marks=FULL_ONLY) for each in ("error", "drop"))]
)
def test_which_row_is_whose_is_never_guessed(
    files: list[Traces], rows: Any, words: str, missing_score: str, tmp_path: Path
) -> None:
    pattern = write_files(tmp_path, *files)
    options = PackOptions(missing_score=missing_score)
    with pytest.raises(ScoreError, match=words):
        pack(
            [pattern],
            tmp_path / "out",
            scores=write_rows(tmp_path / "s.csv", *rows),
            options=options,
        )
    assert not list((tmp_path / "out").glob("*"))


def test_appended_traces_of_a_question_that_is_there(tmp_path: Path) -> None:
    """Their place among those of the data set is not the one among those that were scored."""
    old = write_files(tmp_path / "old", [("a", None), ("b", None)])
    rows = write_rows(tmp_path / "s.csv", ("a", 0, 0), ("a", 1, 1), ("b", "", 1), ("c", 0, 0.5))
    once = write_rows(tmp_path / "once.csv", ("a", 0, 0), ("b", 0, 1))
    pack([old], tmp_path / "out", scores=once)
    before = contents(tmp_path / "out")
    more = write_files(tmp_path / "more", [("c", None), ("a", None)], first=1)
    with pytest.raises(
        ScoreError, match=r"question a: .*the data set has traces of the question al"
    ):
        pack([more], tmp_path / "out", scores=rows, append=True)
    assert contents(tmp_path / "out") == before
    # What says its number is known, and so is a question that was not there.
    more = write_files(tmp_path / "more", [("c", None), ("a", 1)], first=1)
    pack([more], tmp_path / "out", scores=rows, append=True)
    assert scores_of(tmp_path / "out") == {("a", 0): 0, ("a", 1): 1, ("b", 0): 1, ("c", 0): 0.5}
    assert DatasetIndex.open(tmp_path / "out").file.provenance.numbered == 3


def dropped_in_between(folder: Path) -> tuple[str, Path, dict[tuple[str, int], float]]:
    """Return files of traces without numbers, rows of them, every third without a score, and the
    scores that are left.
    """
    files = write_files(folder, *[[(f"q{i % 7}", None) for i in range(10)] for _ in range(6)])
    rows: list[tuple[str, object, object]] = []
    left = {}
    for place in range(60):
        question = f"q{place % 10 % 7}"
        number = sum(row[0] == question for row in rows)
        score = "" if place % 3 == 1 else place / 64
        rows.append((question, number, score))
        if score != "":
            left[question, number] = float(score)
    return files, write_rows(folder / "s.csv", *rows), left


def test_dropped_traces_keep_their_numbers(tmp_path: Path) -> None:
    files, rows, left = dropped_in_between(tmp_path)
    options = PackOptions(missing_score="drop")
    report = pack([files], tmp_path / "out", scores=rows, options=options)
    assert (report.samples, report.dropped) == (40, 20)
    assert scores_of(tmp_path / "out") == left
    # So the same file relabels, and another that has a score for every trace of the data set.
    assert relabel(tmp_path / "out", rows, threshold=2).changed > 0
    assert scores_of(tmp_path / "out") == left
    other = write_rows(tmp_path / "o.csv", *((*key, 1 - score) for key, score in left.items()))
    relabel(tmp_path / "out", other)
    assert scores_of(tmp_path / "out") == {key: 1 - score for key, score in left.items()}


def test_a_dropped_trace_that_says_its_number_counts_too(tmp_path: Path) -> None:
    files = write_files(tmp_path, [("a", 4), ("a", None), ("a", None)])
    rows = write_rows(tmp_path / "s.csv", ("a", 4, ""), ("a", 1, 0.5), ("a", 2, 0.25))
    options = PackOptions(missing_score="drop")
    pack([files], tmp_path / "out", scores=rows, options=options)
    assert scores_of(tmp_path / "out") == {("a", 1): 0.5, ("a", 2): 0.25}


def test_a_resumed_run_numbers_on(tmp_path: Path) -> None:
    files, rows, left = dropped_in_between(tmp_path)
    options = PackOptions(missing_score="drop", shard_mb=0.004)
    pack([files], tmp_path / "whole", scores=rows, options=options)
    last = (tmp_path / "f5.pkl").read_bytes()
    write_pickle(tmp_path / "f5.pkl", [{"question_id": "q0"}])
    with pytest.raises(TraceError):
        pack([files], tmp_path / "out", scores=rows, options=options, resume=True)
    assert list((tmp_path / "out").glob("*.tar"))
    (tmp_path / "f5.pkl").write_bytes(last)
    pack([files], tmp_path / "out", scores=rows, options=options, resume=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert scores_of(tmp_path / "out") == left


def test_a_resumed_run_still_counts_the_rows(tmp_path: Path) -> None:
    """Of questions, too, whose traces all stand in files that are not read again."""
    files = write_files(tmp_path, *[[(f"q{n}-{i}", None) for i in range(10)] for n in range(4)])
    names = [f"q{n}-{i}" for n in range(4) for i in range(10)]
    rows = write_rows(tmp_path / "s.csv", *((name, 0, 1) for name in names), ("q0-0", 1, 1))
    options = PackOptions(shard_mb=0.004)
    for _ in range(2):
        with pytest.raises(
            ScoreError, match=r"f0\.pkl, trace 0, question q0-0: .*the files hold 1"
        ):
            pack([files], tmp_path / "out", scores=rows, options=options, resume=True)
        assert list((tmp_path / "out").glob("*.tar"))
