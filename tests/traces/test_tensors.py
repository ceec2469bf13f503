"""NumPy arrays and scalars in files of ``torch.save``: read as in pickles, and as safely."""

from __future__ import annotations

import pickle
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from traces.raw import make_raw, renamed_globals
from traces.test_stand_ins import BROKEN_ARRAYS
from traces.test_unpickle import Calls

from wdsbench.errors import TraceError
from wdsbench.traces.read import read_traces
from wdsbench.traces.tensors import load_tensors

RAWS = [defaultdict(list, make_raw(seed, question_id=np.int64(seed))) for seed in range(3)]


def numpy1_torch_file(path: Path) -> None:
    """Rename the globals in a torch file to those of NumPy 1."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            if name.endswith("/data.pkl"):
                data = renamed_globals(data, lambda text: text.replace("numpy._core", "numpy.core"))
                assert b"numpy.core" in data
            archive.writestr(name, data)


@pytest.mark.parametrize("form", ["zip", "legacy", "numpy 1"])
@pytest.mark.parametrize("name", ["a.pt", "a.pkl"])
def test_raw_traces_of_arrays(name: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / name
    torch.save(RAWS, path, _use_new_zipfile_serialization=form != "legacy")
    if form == "numpy 1":
        numpy1_torch_file(path)
    traces = list(read_traces(path))
    assert [trace.question_id for trace in traces] == ["0", "1", "2"]
    for trace, raw in zip(traces, RAWS, strict=True):
        assert trace.hidden.dtype == np.float16
        assert np.array_equal(trace.hidden, np.stack(raw["hidden_states"]))
        assert np.array_equal(np.stack(trace.attentions or []), np.stack(raw["attentions"]))
        assert np.array_equal(trace.token_logprobs, raw["token_logprobs"])
        assert trace.remarks == ()


def save_pickle(value: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(value))


@pytest.mark.parametrize("save", [torch.save, save_pickle])
def test_sequences_of_arrays(save: Any, tmp_path: Path) -> None:
    states = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    content = {"sequences": states, "labels": np.array([1, 0]), "question_ids": np.array([7, 8])}
    save(content, tmp_path / "a.pkl")
    traces = list(read_traces(tmp_path / "a.pkl"))
    assert [(trace.question_id, trace.label) for trace in traces] == [("7", 1), ("8", 0)]
    for trace, sequence in zip(traces, states, strict=True):
        assert np.array_equal(trace.hidden, sequence[:, None])


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("state", "words"), [row[1:] for row in BROKEN_ARRAYS], ids=[row[0] for row in BROKEN_ARRAYS]
)
def test_broken_arrays(state: tuple[Any, ...], words: str, legacy: bool, tmp_path: Path) -> None:
    reconstruct = np.zeros(1).__reduce__()[0]
    broken = [Calls(reconstruct, np.ndarray, (0,), b"b", state=state)]
    torch.save(broken, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(TraceError, match=words) as caught:
        load_tensors(tmp_path / "a.pt")
    assert caught.value.file == str(tmp_path / "a.pt")


# (what the file names, the pickle inside)
HOSTILE = [
    ("other names of NumPy", b"\x80\x02cnumpy\nload\n."),
    ("a reader's own class", b"\x80\x02cwdsbench.traces.stand_ins\n_Array\n."),
    ("attributes of a stand-in", b"\x80\x02cnumpy\ndtype\n}X\x01\0\0\0aK\x01sb."),
    ("a new dtype", b"\x80\x02cnumpy\ndtype\nX\x02\0\0\0f2\x85\x81."),
]


@pytest.mark.parametrize("data", [row[1] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_hostile_files(data: bytes, tmp_path: Path) -> None:
    torch.save([], tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, data if name.endswith("/data.pkl") else content)
    with pytest.raises(TraceError, match=r"nothing in it was run|not a readable torch file"):
        load_tensors(tmp_path / "a.pt")


def test_what_the_program_allows_torch_is_neither_used_nor_lost(tmp_path: Path) -> None:
    reconstruct = np.zeros(1).__reduce__()[0]
    torch.save(RAWS, tmp_path / "a.pt")
    with torch.serialization.safe_globals([reconstruct, np.ndarray, np.dtype, np.finfo]):
        before = set(torch.serialization.get_safe_globals())
        assert len(list(read_traces(tmp_path / "a.pt"))) == 3
        torch.save({"x": np.finfo(np.float16)}, tmp_path / "b.pt")
        with pytest.raises(TraceError, match="nothing in it was run"):
            load_tensors(tmp_path / "b.pt")
        assert set(torch.serialization.get_safe_globals()) == before


def test_numpys_own_dtypes_are_unharmed(tmp_path: Path) -> None:
    """BUILD with copy=False would change the one float32 of the process, if it were NumPy's."""
    state = (3, ">", None, None, None, -1, -1, 0)
    torch.save(Calls(np.dtype, "f4", False, False, state=state), tmp_path / "a.pt")
    load_tensors(tmp_path / "a.pt")
    assert np.dtype("f4").byteorder == "="
