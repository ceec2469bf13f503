"""Named arrays in .safetensors, .npz and HDF5: round trips, other people's writers, damage."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces.raw import LAYERS, make_raw

from wdsbench.errors import TraceError
from wdsbench.pack import pack
from wdsbench.records import Trace
from wdsbench.traces.read import read_traces
from wdsbench.traces.write import write_traces

RAWS = [make_raw(seed) for seed in range(3)]
SUFFIXES = [".npz", ".safetensors", ".h5"]


def needs(suffix: str) -> None:
    if suffix in (".h5", ".hdf5"):
        pytest.importorskip("h5py", reason="the extra hdf5 is not installed")


def same(ours: Trace, theirs: Trace) -> None:
    np.testing.assert_array_equal(ours.hidden, theirs.hidden)
    assert ours.hidden.dtype == theirs.hidden.dtype
    assert (ours.attentions is None) == (theirs.attentions is None)
    if theirs.attentions is not None:
        np.testing.assert_array_equal(np.stack(ours.attentions or []), np.stack(theirs.attentions))
    for name in ("question_id", "token_texts", "answer", "prompt_length", "trace_number", "label"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    np.testing.assert_array_equal(ours.token_logprobs, theirs.token_logprobs)
    assert (ours.position, ours.remarks) == (theirs.position, theirs.remarks)


def by_pickle(tmp_path: Path, raws: list[dict[str, Any]]) -> list[Trace]:
    write_traces(tmp_path / "reference.pkl", raws)
    return list(read_traces(tmp_path / "reference.pkl"))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("count", [1, 3])
def test_round_trip(suffix: str, count: int, tmp_path: Path) -> None:
    needs(suffix)
    raws = [
        {**raw, "trace_number": 7, "label": 1, "generated_answer_clean": "né\n"}
        for raw in RAWS[:count]
    ]
    write_traces(tmp_path / f"a{suffix}", raws)
    found = list(read_traces(tmp_path / f"a{suffix}"))
    assert len(found) == count
    for ours, theirs in zip(found, by_pickle(tmp_path, raws), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_reduced_attention_comes_back(suffix: str, tmp_path: Path) -> None:
    needs(suffix)
    reduced = {
        "num_heads": 2,
        "edges_index": np.array([[0, 0], [1, 2]], np.uint8),
        "edges_weight": np.array([0.5, 0.25], np.float16),
        "edges_ptr": np.array([0, 1, 1, 2], np.uint32),
        "edge_rule": "top:0.35",
    }
    raw = make_raw(attentions=None, reduced_attention=reduced)
    write_traces(tmp_path / f"a{suffix}", [raw, raw])
    trace = list(read_traces(tmp_path / f"a{suffix}"))[1]
    assert trace.reduced is not None
    assert trace.reduced.edges is not None
    assert trace.reduced.edge_rule == "top:0.35"
    assert trace.reduced.edges.pointer.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("suffix", SUFFIXES[:2])
def test_same_input_same_bytes(suffix: str, tmp_path: Path) -> None:
    write_traces(tmp_path / f"a{suffix}", RAWS)
    os.utime(tmp_path / f"a{suffix}", (1, 1))
    write_traces(tmp_path / f"b{suffix}", RAWS)
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_the_libraries_read_what_is_written(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    write_traces(tmp_path / "a.npz", RAWS)
    write_traces(tmp_path / "a.safetensors", RAWS)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["1.hidden_states.2"], RAWS[1]["hidden_states"][2])
        assert json.loads(archive["meta.json"])["1"]["question_id"] == "q1"
    tensors = load_file(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(tensors["2.hidden_states.0"], RAWS[2]["hidden_states"][0])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_numpy_writes_one_trace_with_plain_names(save: Callable[..., None], tmp_path: Path) -> None:
    raw = RAWS[0]
    save(
        tmp_path / "a.npz",
        hidden_states=np.asfortranarray(np.stack(raw["hidden_states"])),
        attentions=np.stack(raw["attentions"]),
        tokens=np.array(raw["tokens"]),
        tokens_decoded=np.array(raw["tokens_decoded"]),
        generated_answer_clean="an answer",
        question_id="q0",
        prompt_length=3,
        token_logprobs=raw["token_logprobs"],
        something_else=np.ones(3),
    )
    (trace,) = read_traces(tmp_path / "a.npz")
    same(trace, by_pickle(tmp_path, [raw])[0])


def test_numpy_writes_an_integer_id_and_several_traces(tmp_path: Path) -> None:
    values: dict[str, Any] = {}
    for number in (10, 9):
        values[f"{number}.hidden_states"] = np.full((2, 2, 3), number, np.float32)
        values[f"{number}.tokens"] = [1, 2]
        values[f"{number}.question_id"] = number
    np.savez(tmp_path / "a.npz", **values)
    assert [trace.question_id for trace in read_traces(tmp_path / "a.npz")] == ["9", "10"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_the_library_writes_one_trace_with_plain_names(dtype: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    states = torch.randn(2, 3, 4).to(getattr(torch, dtype))
    save_file(
        {"hidden_states": states, "tokens": torch.arange(3), "prompt_length": torch.tensor(1)},
        tmp_path / "a.safetensors",
        metadata={
            "format": "pt",
            "question_id": "17",
            "tokens_decoded": '["a", "b", "c"]',
            "generated_answer_clean": "b c",
        },
    )
    (trace,) = read_traces(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(trace.hidden.astype(np.float32), states.float().numpy())
    assert (trace.question_id, trace.prompt_length, trace.answer) == ("17", 1, "b c")
    assert trace.token_texts == ["a", "b", "c"]


def test_h5py_writes_groups_and_attributes(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="the extra hdf5 is not installed")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("10", "9"):
            group = file.create_group(name)
            group["hidden_states"] = np.full((2, 3, 4), int(name), np.float16)
            group["tokens"] = [1, 2, 3]
            group.attrs["question_id"] = f"q{name}"
            group.attrs["prompt_length"] = 1
            group["tokens_decoded"] = ["a", "b", "c"]
            for layer in range(2):
                group[f"attentions/{layer}"] = np.tril(np.ones((1, 3, 3), np.float16))
    traces = list(read_traces(tmp_path / "a.hdf5"))
    assert [trace.question_id for trace in traces] == ["q9", "q10"]
    assert [trace.prompt_length for trace in traces] == [1, 1]
    assert traces[0].token_texts == ["a", "b", "c"]
    assert len(traces[0].attentions or ()) == 2


def test_h5_links_do_not_leave_the_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="the extra hdf5 is not installed")
    write_traces(tmp_path / "other.h5", RAWS[:1])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["0"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/0")
    with pytest.raises(TraceError, match="is a link to another file"):
        list(read_traces(tmp_path / "a.h5"))


def test_hdf5_without_h5py_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    (tmp_path / "a.h5").write_bytes(b"x")
    with pytest.raises(TraceError, match=r"pip install 'wdsbench\[hdf5\]'"):
        list(read_traces(tmp_path / "a.h5"))


def test_all_kinds_under_one_pattern(tmp_path: Path) -> None:
    suffixes = [".pkl", ".pkl.gz", ".npz", ".safetensors"]
    for seed, suffix in enumerate(suffixes):
        (tmp_path / "t").mkdir(exist_ok=True)
        write_traces(tmp_path / "t" / f"a{seed}{suffix}", [{**make_raw(seed), "label": 1}])
    report = pack([str(tmp_path / "t" / "*")], tmp_path / "out")
    assert report.samples == len(suffixes)


def st(header: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# (how it is broken, the file's bytes, words of the error)
BROKEN_SAFETENSORS: list[tuple[str, bytes, str]] = [
    ("empty", b"", "the file is empty"),
    ("no header", b"abc", "the file has 3 bytes; expected at least 8"),
    ("long header", struct.pack("<Q", 99) + b"{}", "the header has 99 bytes, the file 10"),
    ("huge header", struct.pack("<Q", 2**63) + b"{}", "the header has 9223372036854775808 bytes"),
    ("no JSON", struct.pack("<Q", 2) + b"{!", "the header is not JSON"),
    ("no object", struct.pack("<Q", 2) + b"[]", "the header is not a JSON object"),
    ("other names", st({"weight": entry("F16", [0], 0, 0)}), "no array has the name of a part"),
    ("no entry", st({"tokens": 3}), "tensor tokens: needs dtype"),
    ("beyond the end", st({"tokens": entry("I64", [1], 0, 8)}), "bytes 0 to 8; the data has 0"),
    (
        "backwards",
        st({"tokens": entry("I64", [1], 8, 0)}, bytes(8)),
        "bytes 8 to 0; the data has 8",
    ),
    ("shape", st({"tokens": entry("I64", [2], 0, 8)}, bytes(8)), "8 bytes for I64 of shape"),
    ("negative", st({"tokens": entry("I64", [-1], 0, 0)}), r"shape \[-1\]"),
    ("dtype", st({"tokens": entry("F8_E4M3", [8], 0, 8)}, bytes(8)), "has dtype F8_E4M3; expected"),
    ("no id", st({"tokens": entry("I64", [1], 0, 8)}, bytes(8)), "required keys are missing"),
    (
        "mixed names",
        st({"tokens": entry("I64", [0], 0, 0), "0.tokens": entry("I64", [0], 0, 0)}),
        "are mixed with names without one",
    ),
    (
        "layers with a gap",
        st({f"hidden_states.{i}": entry("F16", [1, 1], 0, 2) for i in (0, 2)}, bytes(2)),
        "hidden_states has layers 0, 2",
    ),
    (
        "layers twice",
        st({name: entry("F16", [1], 0, 2) for name in ("hidden_states", "hidden_states.0")}, b"ab"),
        "as one array and layer by layer",
    ),
    ("meta", st({"__metadata__": {"meta": "[1]"}}), r"meta is \[1\]; expected a JSON object"),
    ("meta text", st({"__metadata__": {"meta": "{"}}), "meta, is not JSON"),
    ("metadata", st({"__metadata__": {"tokens": "x"}}), "tokens, is not JSON"),
]


@pytest.mark.parametrize(
    ("data", "words"),
    [row[1:] for row in BROKEN_SAFETENSORS],
    ids=[row[0] for row in BROKEN_SAFETENSORS],
)
def test_broken_safetensors(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=words) as caught:
        list(read_traces(path))
    assert caught.value.file == str(path)


def npz(tmp_path: Path, **values: Any) -> bytes:
    np.savez(tmp_path / "whole.npz", **values)
    return (tmp_path / "whole.npz").read_bytes()


def whole(tmp_path: Path) -> bytes:
    return npz(tmp_path, hidden_states=np.ones((2, 3, 4)), tokens=[1, 2, 3], question_id="q")


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def with_member(tmp_path: Path, name: str, content: bytes) -> bytes:
    with zipfile.ZipFile(tmp_path / "made.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return (tmp_path / "made.npz").read_bytes()


HUGE_NPY = (
    b"\x93NUMPY\x01\x00\x46\x00"
    + (b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000000,)}").ljust(69)
    + b"\n"
)

# (how it is broken, the file's bytes, words of the error)
BROKEN_NPZ: list[tuple[str, Callable[[Path], bytes], str]] = [
    ("no zip", lambda _: b"abc", "not a readable .npz file"),
    ("cut", lambda p: whole(p)[:-9], "not a readable .npz file"),
    ("flipped bit", lambda p: flipped(whole(p), 300), "checksum is wrong"),
    ("objects", lambda p: npz(p, tokens=np.array([None])), "has dtype object"),
    ("other names", lambda p: npz(p, weight=1), "no array has the name of a part"),
    ("no npy", lambda p: with_member(p, "tokens.npy", b"abc"), "tokens.npy is not an npy file"),
    ("huge", lambda p: with_member(p, "tokens.npy", HUGE_NPY), "0 bytes of data; float64 of shape"),
    ("meta", lambda p: with_member(p, "meta.json", b"{"), "meta.json is not JSON"),
]


@pytest.mark.parametrize(
    ("make", "words"), [row[1:] for row in BROKEN_NPZ], ids=[row[0] for row in BROKEN_NPZ]
)
def test_broken_npz(make: Callable[[Path], bytes], words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(make(tmp_path))
    with pytest.raises(TraceError, match=words) as caught:
        list(read_traces(path))
    assert caught.value.file == str(path)


def test_every_layer_apart_or_together(tmp_path: Path) -> None:
    states = np.stack(RAWS[0]["hidden_states"])
    np.savez(tmp_path / "a.npz", hidden_states=states, tokens=np.arange(5), question_id="q")
    apart = {f"hidden_states.{layer}": states[layer] for layer in range(LAYERS)}
    np.savez(tmp_path / "b.npz", **apart, tokens=np.arange(5), question_id="q")
    (first,), (second,) = (read_traces(tmp_path / name) for name in ("a.npz", "b.npz"))
    np.testing.assert_array_equal(first.hidden, second.hidden)


def test_a_name_that_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ends in none of"):
        write_traces(tmp_path / "a.pt", RAWS)
