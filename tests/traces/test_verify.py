"""Every bad file and trace is listed with its reason, and the check continues."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from traces.raw import FEATURES, LAYERS, TOKENS, make_raw

from wdsbench.errors import TraceError
from wdsbench.traces.read import read_traces
from wdsbench.traces.verify import RawReport, verify_raw
from wdsbench.traces.write import write_traces


class Hostile:
    """Runs a command where it is unpickled by other readers than ours."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/wdsbench-was-run",)


def places(report: RawReport) -> list[tuple[str, int | None, str | None]]:
    return [(Path(p.file).name, p.position, p.question_id) for p in report.problems]


def test_good_files_report_nothing(tmp_path: Path) -> None:
    write_traces(tmp_path / "a.pkl.gz", [make_raw(i) for i in range(4)])
    write_traces(tmp_path / "b.pkl.gz", [make_raw(9, tokens_decoded=None)])
    report = verify_raw([tmp_path / "*.pkl*"])
    assert report.sound
    assert (report.files, report.traces, report.questions, report.tokens) == (2, 5, 5, 5 * TOKENS)
    assert report.remarks == {"no tokens_decoded": 1}
    assert report.as_json()["sound"] is True


def test_every_bad_trace_of_a_file(tmp_path: Path) -> None:
    nan = make_raw(3)
    nan["hidden_states"][1][2, 1] = np.nan
    raws: list[Any] = [
        make_raw(0),
        make_raw(1, hidden_states=None),
        make_raw(2),
        nan,
        "no trace",
        make_raw(5, prompt_length=99),
        make_raw(6),
    ]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(raws))
    report = verify_raw([tmp_path / "a.pkl"])
    assert places(report) == [
        ("a.pkl", 1, "q1"),
        ("a.pkl", 3, "q3"),
        ("a.pkl", 4, None),
        ("a.pkl", 5, "q5"),
    ]
    assert (report.traces, report.bad_traces, report.bad_files) == (3, 4, 0)
    with pytest.raises(TraceError) as raised:
        list(read_traces(tmp_path / "a.pkl"))
    assert str(report.problems[0]) == str(raised.value)  # the same words as everywhere
    assert "layer 1, holds NaN" in str(report.problems[1])


def test_bad_files_between_good_ones(tmp_path: Path) -> None:
    whole = pickle.dumps([make_raw(0), make_raw(1)])
    hostile = tmp_path / "wdsbench-was-run"
    files: dict[str, bytes] = {
        "a.pkl": whole,
        "b.pkl": whole[:-100],
        "c.pkl.gz": gzip.compress(whole)[:-40],
        "d.pkl": pickle.dumps([Hostile()]),
        "e.pkl": b"",
        "f.pkl": pickle.dumps([]),
        "g.pkl": pickle.dumps({"x": 1}),
        "h.pkl": pickle.dumps([make_raw(7)]) + pickle.dumps([make_raw(8)])[:-5],
        "i.pkl": pickle.dumps([make_raw(9)]),
        "j.pt": b"no zip",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    report = verify_raw([tmp_path])
    assert places(report) == [
        (name, None, None) for name in files if name not in ("a.pkl", "i.pkl")
    ]
    assert (report.files, report.bad_files, report.traces) == (10, 8, 4)
    assert "system" in next(p.detail for p in report.problems if p.file.endswith("d.pkl"))
    assert not hostile.exists()
    assert not Path("/tmp/wdsbench-was-run").exists()


def test_matches_that_are_no_trace_files(tmp_path: Path) -> None:
    whole = pickle.dumps([make_raw(0)])
    for name in ("a.pkl", "a.pkl.bak", "c.pkl", "c.pkl.gz", "journal.jsonl"):
        (tmp_path / name).write_bytes(whole)
    (tmp_path / "c.pkl").write_bytes(pickle.dumps([make_raw(1)]))
    report = verify_raw([tmp_path / "*"])
    assert places(report) == [("a.pkl.bak", None, None), ("c.pkl.gz", None, None)]
    assert (report.files, report.bad_files, report.traces) == (4, 2, 2)
    assert "ends in none of" in report.problems[0].detail
    assert "both c.pkl and c.pkl.gz match" in report.problems[1].detail


def test_maps_that_are_no_probabilities(tmp_path: Path) -> None:
    scores, infinite = make_raw(1), make_raw(3)
    scores["attentions"][1] = -scores["attentions"][1]
    infinite["attentions"][2][0, 3, 1] = np.inf
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([make_raw(0), scores, make_raw(2), infinite]))
    report = verify_raw([tmp_path / "a.pkl"])
    assert places(report) == [("a.pkl", 1, "q1"), ("a.pkl", 3, "q3")]
    assert "layer 1: the weight of edge 0 -> 1 is -" in report.problems[0].detail
    assert "layer 2: " in report.problems[1].detail
    assert (report.traces, report.bad_traces) == (2, 2)


def test_traces_that_come_twice(tmp_path: Path) -> None:
    same = [make_raw(0), make_raw(0)]  # equal answers of one file
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([*same, make_raw(1, trace_number=2)]))
    other = make_raw(5, question_id="q1", trace_number=2)
    (tmp_path / "b.pkl").write_bytes(pickle.dumps([make_raw(0), other]))
    report = verify_raw([tmp_path])
    assert places(report) == [("b.pkl", 0, "q0"), ("b.pkl", 1, "q1")]
    assert "is the same trace as" in report.problems[0].detail
    assert "has trace number 2, which" in report.problems[1].detail


def test_preprocessed_sequences(tmp_path: Path) -> None:
    sequences = torch.randn(6, LAYERS, FEATURES)
    sequences[2, 1, 0] = torch.nan
    sequences[4, 0, 0] = torch.nan
    content = {
        "sequences": sequences,
        "labels": torch.tensor([0, 1, 0, 1, 0, 7]),
        "question_ids": [f"q{i}" for i in range(6)],
    }
    torch.save(content, tmp_path / "a.pt")
    report = verify_raw([tmp_path / "a.pt"])
    assert places(report) == [("a.pt", 2, "q2"), ("a.pt", 4, "q4"), ("a.pt", 5, "q5")]
    assert (report.traces, report.bad_traces) == (3, 3)
    content["question_ids"] = ["q0"]
    torch.save(content, tmp_path / "a.pt")
    (problem,) = verify_raw([tmp_path / "a.pt"]).problems
    assert problem.position is None
    assert "1 question_ids and 6 sequences" in problem.detail


def test_a_pattern_that_matches_nothing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no file matches"):
        verify_raw([tmp_path / "*.pkl"])
