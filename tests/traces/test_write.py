"""Written traces read back, byte for byte the same, or not at all."""

from __future__ import annotations

import copy
import gzip
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from traces.raw import make_raw

from wdsbench.traces.read import read_traces
from wdsbench.traces.write import write_traces


def test_what_is_written_is_a_plain_gzipped_pickle(tmp_path: Path) -> None:
    raws = [make_raw(seed) for seed in range(2)]
    write_traces(tmp_path / "a.pkl.gz", raws)
    read = pickle.loads(gzip.decompress((tmp_path / "a.pkl.gz").read_bytes()))
    assert [list(raw) for raw in read] == [list(raw) for raw in raws]
    for ours, theirs in zip(read, raws, strict=True):
        assert all(map(np.array_equal, ours["hidden_states"], theirs["hidden_states"]))
        assert all(map(np.array_equal, ours["attentions"], theirs["attentions"]))
        assert ours["tokens"] == theirs["tokens"]
        assert ours["token_logprobs"].dtype == np.float32


def test_same_input_same_bytes(tmp_path: Path) -> None:
    """Neither the name, nor the time, nor which objects are shared, nor memory order shows."""
    raws = [make_raw(0), make_raw(0)]
    shared = make_raw(0)
    other = copy.deepcopy(shared)
    other["hidden_states"] = [np.asfortranarray(layer) for layer in other["hidden_states"]]
    write_traces(tmp_path / "a.pkl.gz", raws)
    write_traces(tmp_path / "b.pkl.gz", [shared, shared])
    write_traces(tmp_path / "c.pkl.gz", [other, raws[0]])
    first = (tmp_path / "a.pkl.gz").read_bytes()
    assert (tmp_path / "b.pkl.gz").read_bytes() == first
    assert (tmp_path / "c.pkl.gz").read_bytes() == first
    assert first[4:8] == bytes(4)  # no time
    assert not first[3] & 0x08  # no name


def test_tensors_are_written_as_arrays(tmp_path: Path) -> None:
    raw = make_raw(hidden_states=torch.ones(3, 5, 4, dtype=torch.bfloat16))
    write_traces(tmp_path / "a.pkl.gz", [raw])
    assert b"torch" not in gzip.decompress((tmp_path / "a.pkl.gz").read_bytes())
    (trace,) = read_traces(tmp_path / "a.pkl.gz")
    assert trace.hidden.shape == (3, 5, 4)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl.gz"
    path.write_bytes(b"old")
    with pytest.raises(TypeError, match="cannot pickle 'generator'"):
        write_traces(path, [make_raw(), make_raw(extra=(number for number in (1, 2)))])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_reading_and_writing_need_no_torch(tmp_path: Path) -> None:
    write_traces(tmp_path / "a.pkl.gz", [make_raw()])
    code = (
        "import sys; from pathlib import Path; from wdsbench.traces.read import read_traces; "
        "from wdsbench.traces.write import write_traces; "
        f"print(len(list(read_traces(Path({str(tmp_path / 'a.pkl.gz')!r})))), 'torch' in "
        "sys.modules)"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert run.stdout.split() == ["1", "False"]
