"""Whole files in: pickles plain and compressed, torch files, and damaged ones."""

from __future__ import annotations

import gc
import gzip
import io
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from traces.raw import make_raw, numpy1_pickle

from wdsbench.errors import TraceError
from wdsbench.traces.read import read_traces
from wdsbench.traces.write import write_traces

RAWS = [make_raw(seed) for seed in range(3)]


def ids(path: Path) -> list[tuple[str, int]]:
    return [(trace.question_id, trace.position) for trace in read_traces(path)]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dumps", [pickle.dumps, numpy1_pickle], ids=["numpy2", "numpy1"])
@pytest.mark.parametrize("squeeze", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_pickles(squeeze: Any, dumps: Any, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(squeeze(dumps(RAWS, protocol)))
    traces = list(read_traces(path))
    assert [(t.question_id, t.position, t.file) for t in traces] == [
        ("q0", 0, str(path)),
        ("q1", 1, str(path)),
        ("q2", 2, str(path)),
    ]
    for trace, raw in zip(traces, RAWS, strict=True):
        assert np.array_equal(trace.hidden, np.stack(raw["hidden_states"]))
        assert np.array_equal(np.stack(trace.attentions or []), np.stack(raw["attentions"]))
        assert trace.remarks == ()


# (what the file holds, its bytes)
CONTENTS = [
    ("a list", pickle.dumps(RAWS)),
    ("a tuple", pickle.dumps(tuple(RAWS))),
    ("an array of objects", pickle.dumps(np.array(RAWS, dtype=object))),
    ("traces in a dict", pickle.dumps({"traces": RAWS, "model": "m"})),
    ("pickles one after the other", b"".join(pickle.dumps(raw) for raw in RAWS)),
    ("lists one after the other", pickle.dumps(RAWS[:2]) + pickle.dumps(RAWS[2:])),
]


@pytest.mark.parametrize("squeeze", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("data", [row[1] for row in CONTENTS], ids=[row[0] for row in CONTENTS])
def test_containers(data: bytes, squeeze: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.pkl.gz"
    path.write_bytes(squeeze(data))
    assert ids(path) == [("q0", 0), ("q1", 1), ("q2", 2)]


def test_torch_tensors_in_pickles(tmp_path: Path) -> None:
    raw = make_raw(
        hidden_states=[torch.from_numpy(s.copy()).bfloat16() for s in RAWS[0]["hidden_states"]],
        tokens=torch.arange(5),
    )
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([raw]))
    (trace,) = read_traces(tmp_path / "a.pkl")
    assert trace.hidden.dtype == np.float32
    assert trace.tokens.tolist() == [0, 1, 2, 3, 4]


def test_traces_are_released_as_they_are_consumed(tmp_path: Path) -> None:
    write_traces(tmp_path / "a.pkl.gz", RAWS)
    reader = read_traces(tmp_path / "a.pkl.gz")
    first = weakref.ref(next(reader).hidden)
    next(reader)
    gc.collect()
    assert first() is None


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("form", ["tensor", "list"])
def test_sequences(form: str, legacy: bool, tmp_path: Path) -> None:
    states = torch.arange(24, dtype=torch.float16).reshape(2, 3, 4)
    content = {
        "sequences": states if form == "tensor" else list(states),
        "labels": torch.tensor([1.0, 0.0]) if form == "tensor" else [1, 0],
        "question_ids": torch.tensor([7, 8]) if form == "tensor" else ["7", 8],
    }
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    traces = list(read_traces(tmp_path / "a.pt"))
    assert [(t.question_id, t.label, t.position) for t in traces] == [("7", 1, 0), ("8", 0, 1)]
    for trace, sequence in zip(traces, states, strict=True):
        assert np.array_equal(trace.hidden, sequence[:, None].numpy())
        assert (len(trace.tokens), trace.attentions, trace.prompt_length) == (0, None, None)
        assert trace.remarks == ()


def test_sequences_without_labels(tmp_path: Path) -> None:
    torch.save({"sequences": torch.ones(1, 3, 4), "question_ids": ["a"]}, tmp_path / "a.pt")
    (trace,) = read_traces(tmp_path / "a.pt")
    assert trace.label is None


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", ["a.pt", "a.pkl"])
def test_raw_traces_saved_by_torch(name: str, legacy: bool, tmp_path: Path) -> None:
    raw = {
        **make_raw(attentions=None, token_logprobs=None),
        "hidden_states": [torch.from_numpy(s.copy()) for s in RAWS[0]["hidden_states"]],
    }
    torch.save([raw], tmp_path / name, _use_new_zipfile_serialization=not legacy)
    assert ids(tmp_path / name) == [("q0", 0)]


def saved(value: object, legacy: bool = False) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


# (how it is broken, file name, bytes or what torch.save saves, words of the error)
BROKEN: list[tuple[str, str, Any, str]] = [
    ("cut pickle", "a.pkl", pickle.dumps(RAWS)[:-9], "cut short or damaged"),
    ("cut gzip", "a.pkl.gz", gzip.compress(pickle.dumps(RAWS))[:-9], "cut short or damaged"),
    ("gzip cut early", "a.pkl.gz", gzip.compress(b"x")[:6], "cut short or damaged"),
    (
        "gzip checksum",
        "a.pkl",
        gzip.compress(pickle.dumps([]))[:-8] + bytes(8),
        "cut short or dama",
    ),
    ("trailing rubbish", "a.pkl", pickle.dumps(RAWS) + b"\0\0", "cut short or damaged"),
    ("no file", "a.pkl", None, "cannot be read"),
    ("empty list", "a.pkl", pickle.dumps([]), "no traces"),
    ("number", "a.pkl", pickle.dumps(3), "holds a int; expected a list"),
    ("other dict", "a.pkl", pickle.dumps({"a": 1}), "not a trace (keys: a)"),
    ("list of numbers", "a.pkl", pickle.dumps([1]), "the trace is a int; expected a dict"),
    ("hostile", "a.pkl", b"cos\nsystem\n(S'touch sentinel'\ntR.", "os.system"),
    ("no torch file", "a.pt", b"abc", "a.pt: "),
    ("empty torch file", "a.pt", b"", "the file is empty"),
    ("hostile torch file", "a.pt", pickle.dumps(print), "nothing in it was run"),
    ("torch file with a dtype", "a.pt", {"x": np.finfo(np.float16)}, "nothing in it was run"),
    ("sequences of one axis", "a.pt", {"sequences": np.ones(3)}, "sequences is (3,)"),
    ("array alone", "a.pkl", pickle.dumps(np.ones((2, 3))), "holds an array of shape (2, 3)"),
    ("NumPy pickle", "a.pt", pickle.dumps(RAWS), "or use pickle.dump and a name"),
    ("gzipped torch file", "a.pt", gzip.compress(saved([])), "inflate it with gunzip"),
    ("gzipped as pickle", "a.pkl.gz", gzip.compress(saved([])), "inflate it with gunzip"),
    ("gzipped, legacy", "a.pkl", gzip.compress(saved([], legacy=True)), "inflate it with gunzip"),
    ("gzipped pickle", "a.pt", gzip.compress(pickle.dumps(RAWS)), "a name ending in .pkl.gz"),
    ("no graphs", "a.pt", {"graphs": [], "question_ids": []}, "holds no traces"),
    ("graphs no list", "a.pt", {"graphs": torch.ones(2, 3, 4)}, "graphs is a Tensor"),
    ("sequence shape", "a.pt", {"sequences": torch.ones(2, 3)}, "sequences is (2, 3)"),
    ("sequence type", "a.pt", {"sequences": "abc"}, "sequences is str"),
    ("no ids", "a.pt", {"sequences": torch.ones(1, 3, 4)}, "question_ids is missing"),
    (
        "ids short",
        "a.pt",
        {"sequences": torch.ones(2, 3, 4), "question_ids": ["a"]},
        "1 question_ids and 2 sequences",
    ),
    (
        "labels long",
        "a.pt",
        {"sequences": torch.ones(1, 3, 4), "question_ids": ["a"], "labels": [1, 0]},
        "2 labels and 1 sequences",
    ),
    (
        "label 3",
        "a.pt",
        {"sequences": torch.ones(1, 3, 4), "question_ids": ["a"], "labels": [3]},
        "question a: label is 3",
    ),
    (
        "integers",
        "a.pt",
        {"sequences": torch.ones(1, 3, 4).long(), "question_ids": ["a"]},
        "dtype int64",
    ),
    (
        "sequence of 3 axes",
        "a.pt",
        {"sequences": [torch.ones(3, 1, 4)], "question_ids": ["a"]},
        "a sequence has shape (3, 1, 4)",
    ),
]


@pytest.mark.parametrize(
    ("name", "content", "words"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_broken_files(
    name: str, content: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(TraceError) as caught:
        ids(path)
    assert words in str(caught.value)
    assert caught.value.file == str(path)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert "trust" not in str(caught.value)
    assert not (tmp_path / "sentinel").exists()
