"""Pickles that traces are made of are read exactly; everything else is refused and runs nothing."""

from __future__ import annotations

import contextlib
import copyreg
import io
import itertools
import os
import pickle
import pickletools
import struct
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from traces.raw import make_raw, numpy1_pickle, renamed_globals
from trials import trials

from wdsbench.errors import TraceError
from wdsbench.traces.unpickle import load_pickle

PROTOCOLS = range(6)
CUBE = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
ARRAYS = {
    "c-order": CUBE,
    "f-order": np.asfortranarray(CUBE),
    "strided": CUBE[:, ::2],
    "transposed": CUBE.transpose(1, 0, 2),
    "float32": CUBE.astype(np.float32),
    "float64": CUBE.astype(np.float64),
    "big-endian": CUBE.astype(">f4"),
    "int64": CUBE.astype(np.int64),
    "uint8": CUBE.astype(np.uint8),
    "bool": CUBE > 3,
    "empty": np.zeros((0, 3), dtype=np.float32),
    "no axes": np.array(3.5),
    "texts": np.array(["a", "bcd"]),
    "large": np.arange(40_000, dtype=np.float32),
    "objects": np.array([[1], [2, 3]], dtype=object),
}
PLAIN: list[Any] = [
    np.float32(3),
    np.float16(0.5),
    np.int64(-3),
    np.bool_(True),
    np.str_("a"),
    np.str_(""),
    b"",
    b"abc",
    bytearray(b"abc"),
    bytearray(),
    {1, 2},
    frozenset([1]),
    1 + 2j,
    2**70,
    None,
    True,
    "ünï",
    (1, [2.5, {"a": ()}]),
    OrderedDict(a=1),
]


def loads(data: bytes) -> Any:
    return load_pickle(io.BytesIO(data))


@pytest.mark.parametrize("dumps", [pickle.dumps, numpy1_pickle], ids=["numpy2", "numpy1"])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name: str, dumps: Any) -> None:
    array = ARRAYS[name]
    for protocol in PROTOCOLS:
        data = dumps(array, protocol)
        if dumps is numpy1_pickle:
            assert b"numpy._core" not in data
        read = loads(data)
        assert isinstance(read, np.ndarray)
        assert read.dtype.newbyteorder("=") == array.dtype.newbyteorder("="), protocol
        assert np.array_equal(read, array), protocol


@pytest.mark.parametrize("dumps", [pickle.dumps, numpy1_pickle], ids=["numpy2", "numpy1"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values(protocol: int, dumps: Any) -> None:
    for value in PLAIN:
        read = loads(dumps(value, protocol))
        assert read == value
        assert type(read) is type(value)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool]
)
def test_torch_tensors(dtype: torch.dtype) -> None:
    matrix = torch.arange(6).reshape(2, 3).to(dtype)
    tensors = (matrix, matrix.T, matrix[1:], torch.zeros(0, 3, dtype=dtype), matrix.sum())
    for tensor, protocol in itertools.product(tensors, PROTOCOLS):
        read = loads(pickle.dumps(tensor, protocol))
        assert isinstance(read, np.ndarray)
        assert read.shape == tuple(tensor.shape)
        assert np.array_equal(read.astype(np.float64), tensor.double().numpy())
        assert dtype != torch.bfloat16 or read.dtype == np.float32


def test_torch_parameter() -> None:
    assert loads(pickle.dumps(torch.nn.Parameter(torch.ones(3)))).tolist() == [1, 1, 1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_raw_trace(protocol: int) -> None:
    raw = make_raw()
    read = loads(pickle.dumps([raw, raw], protocol))
    assert read[0] is read[1]
    assert list(read[0]) == list(raw)
    for name in ("hidden_states", "attentions"):
        assert all(map(np.array_equal, read[0][name], raw[name]))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_of_extractors(protocol: int) -> None:
    """Factories of missing keys are forgotten; what is torch's own comes as plain values."""
    trace: dict[str, Any] = defaultdict(list, question_id="q")
    counts: dict[str, Any] = defaultdict(int, a=1)
    note = {
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
        "size": torch.Size([1, 2]),
    }
    trace["note"] = note
    read = loads(pickle.dumps([trace, counts], protocol))
    assert read == [
        {
            "question_id": "q",
            "note": {"dtype": "torch.bfloat16", "device": "cuda:1", "size": (1, 2)},
        },
        {"a": 1},
    ]
    assert type(read[0]) is dict


def test_several_pickles_in_one_stream() -> None:
    stream = io.BytesIO(pickle.dumps("a") + pickle.dumps("b"))
    assert [load_pickle(stream), load_pickle(stream)] == ["a", "b"]


class Calls:
    """Pickles as a call of ``function(*arguments)``, with ``state`` set on the result."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def stack_global(module: str, name: str) -> bytes:
    """Return a protocol 4 pickle's start: its global, which takes dotted names."""
    return b"\x80\x04" + text(module) + text(name) + b"\x93"


def hostile_tensor(inner: bytes) -> bytes:
    """Return a pickled tensor whose storage bytes are ``inner``."""
    return (
        b"\x80\x04"
        + b"ctorch.storage\n_load_from_bytes\n"
        + b"B"
        + struct.pack("<I", len(inner))
        + inner
        + b"\x85R."
    )


def set_attribute(module: str, name: str, key: str, value: bytes = b"K\x01") -> bytes:
    """Return a pickle that BUILDs ``(None, {key: value})`` on a global: setattr in the
    unpickler."""
    return f"c{module}\n{name}\n".encode() + b"\x80\x02N}" + text(key) + value + b"s\x86b."


SENTINEL = "sentinel"
TOUCH = f"open({SENTINEL!r}, 'w')"
# (how it is hostile, the pickle, words of the error)
HOSTILE: list[tuple[str, bytes, str]] = [
    ("os.system", pickle.dumps(Calls(os.system, f"touch {SENTINEL}")), "posix.system"),
    ("os.system, protocol 0", f"cos\nsystem\n(S'touch {SENTINEL}'\ntR.".encode(), "os.system"),
    ("INST opcode", f"(S'touch {SENTINEL}'\nios\nsystem\n.".encode(), "os.system"),
    ("OBJ opcode", f"(cos\nsystem\nS'touch {SENTINEL}'\no.".encode(), "os.system"),
    ("eval", pickle.dumps(Calls(eval, TOUCH)), "builtins.eval"),
    ("exec, Python 2 name", pickle.dumps(Calls(exec, TOUCH), 2), "__builtin__.exec"),
    ("getattr", pickle.dumps(Calls(getattr, np.dtype, "type")), "builtins.getattr"),
    ("__import__", pickle.dumps(Calls(__import__, "os")), "builtins.__import__"),
    ("type", b"c__builtin__\ntype\n.", "__builtin__.type"),
    ("object", b"c__builtin__\nobject\n.", "__builtin__.object"),
    ("nested reduce", pickle.dumps([Calls(map, Calls(eval, TOUCH), [])]), "builtins.map"),
    ("copyreg", b"ccopyreg\n_reconstructor\n.", "copyreg._reconstructor"),
    ("functools", b"cfunctools\npartial\n.", "functools.partial"),
    ("numpy.load", b"cnumpy\nload\n.", "numpy.load"),
    ("numpy.testing", b"cnumpy.testing._private.utils\nrunstring\n.", "runstring"),
    ("numpy.core.multiarray other", b"cnumpy.core.multiarray\nfromfile\n.", "fromfile"),
    ("memmap subclass", b"cnumpy\nmemmap\n.", "numpy.memmap"),
    ("torch.load", b"ctorch.serialization\nload\n.", "torch.serialization.load"),
    ("torch._utils other", b"ctorch._utils\n_rebuild_qtensor\n.", "_rebuild_qtensor"),
    ("dotted name", stack_global("numpy", "ndarray.__reduce__") + b".", "numpy.ndarray.__reduce__"),
    ("dotted module", stack_global("numpy", "f2py.os.system") + b".", "numpy.f2py.os.system"),
    ("dotted builtin", stack_global("builtins", "set.__class__") + b".", "builtins.set.__class__"),
    ("stand-in's attribute", stack_global("numpy", "dtype._function") + b".", "dtype._function"),
    ("control characters", b"cos\x1b[2J\nsys\ttem\n.", r"os\x1b[2J.sys\ttem"),
    (
        "NEWOBJ of a stand-in",
        b"cnumpy\ndtype\n" + b"\x80\x02" + text("f2") + b"\x85\x81.",
        "not a r",
    ),
    ("persistent id, text", b"Pos.system\n.", "persistent ids"),
    ("persistent id, object", b"\x80\x02K\x01Q.", "persistent ids"),
    ("EXT opcode", b"\x80\x02\x82\x01.", "not a readable pickle"),
    ("tensor bytes run code", hostile_tensor(pickle.dumps(Calls(eval, TOUCH))), "not a readable"),
    ("setattr on numpy.dtype", set_attribute("numpy", "dtype", "type"), "nothing was changed"),
    ("setattr on ndarray", set_attribute("numpy", "ndarray", "x"), "nothing was changed"),
    (
        "swap a stand-in's function",
        set_attribute("_codecs", "encode", "_function", b"cos\nsystem\n"),
        "os.system",
    ),
    (
        "swap a stand-in's function for another",
        set_attribute("_codecs", "encode", "_function", b"cnumpy\nndarray\n"),
        "nothing was changed",
    ),
    (
        "swap a stand-in's class",
        set_attribute("builtins", "set", "__class__"),
        "nothing was changed",
    ),
    ("items on a stand-in", b"\x80\x02cnumpy\ndtype\n(K\x01K\x02u.", "not a readable pickle"),
    ("call of a factory", b"c__builtin__\nlist\n((K\x05ltR.", "as pickle does not"),
    ("setattr on a factory", set_attribute("builtins", "list", "x"), "nothing was changed"),
    ("call of ndarray", b"cnumpy\nndarray\n(K\x05tR.", "calls a type as pickle does not"),
    (
        "bytearray of a size",
        b"\x80\x02c__builtin__\nbytearray\nM\xff\xff\x85R.",
        "as pickle does;",
    ),
    ("set of a long range", b"\x80\x02c__builtin__\nset\nK\x05\x85R.", "as pickle does;"),
    (
        "encode by another codec",
        b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x03\0\0\0hex\x86R.",
        "bytes",
    ),
    ("cut", pickle.dumps(make_raw())[:-100], "cut short or damaged"),
    ("empty", b"", "cut short or damaged"),
    ("text", b"question_id,score\n", "cut short or damaged"),
    ("stack underflow", b"\x80\x04\x93.", "cut short or damaged"),
    ("unknown protocol", b"\x80\x09N.", "cut short or damaged"),
    ("huge bytes", b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b".", ""),
]


@pytest.mark.parametrize(
    ("data", "words"), [row[1:] for row in HOSTILE], ids=[r[0] for r in HOSTILE]
)
def test_hostile_pickles_run_nothing(
    data: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError) as caught:
        load_pickle(io.BytesIO(data), file="a.pkl")
    assert words in str(caught.value)
    assert caught.value.file == "a.pkl"
    assert list(tmp_path.iterdir()) == []
    assert loads(pickle.dumps(CUBE, 2)).tolist() == CUBE.tolist()  # the reader itself is unharmed


@pytest.mark.parametrize("code", [1, 0x123, 0x12345678])
def test_extension_registry_is_refused(code: int, tmp_path: Path) -> None:
    """Codes that the host program has registered, and already used, still resolve to nothing."""
    data = (
        b"\x80\x02" + b"\x84" + struct.pack("<i", code) + text(str(tmp_path / "made")) + b"\x85R."
    )
    copyreg.add_extension("posix", "mkdir", code)
    try:
        pickle.loads(data)
        (tmp_path / "made").rmdir()
        with pytest.raises(TraceError, match=r"posix\.mkdir"):
            loads(data)
    finally:
        copyreg.remove_extension("posix", "mkdir", code)
    assert not (tmp_path / "made").exists()


def test_renaming_a_global_is_noticed() -> None:
    data = renamed_globals(pickle.dumps(CUBE, 4), lambda name: name.replace("numpy", "numpi"))
    with pytest.raises(TraceError, match=r"numpi\._core\.multiarray\._reconstruct"):
        loads(data)


@pytest.mark.trials
@settings(max_examples=trials(60, 300), deadline=None)
@given(st.data())
def test_damaged_bytes_raise_only_trace_errors(data: st.DataObject) -> None:
    """One changed byte, in any protocol, gives values or a TraceError, and nothing else."""
    protocol = data.draw(st.sampled_from(PROTOCOLS))
    damaged = bytearray(pickle.dumps([make_raw()], protocol))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if any(_large_memo_index(op, argument) for op, argument in _opcodes(bytes(damaged))):
        return  # CPython allocates its memo up to that index before anybody can refuse it
    with contextlib.suppress(TraceError):
        loads(bytes(damaged))


def _opcodes(data: bytes) -> list[tuple[str, Any]]:
    found = []
    with contextlib.suppress(Exception):  # any damage ends the walk
        for opcode, argument, _ in pickletools.genops(data):
            found.append((opcode.name, argument))
    return found


def _large_memo_index(name: str, argument: Any) -> bool:
    return name in ("PUT", "LONG_BINPUT") and int(argument) > 1 << 20
