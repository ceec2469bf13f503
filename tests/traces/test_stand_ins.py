"""Arrays and tensors in pickles whose parts do not fit together."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from traces.test_unpickle import Calls, loads

from wdsbench.errors import TraceError


def reduced_array(state: tuple[Any, ...]) -> bytes:
    """Return a pickle of ``_reconstruct(ndarray, (0,), b"b")`` with any array state."""
    reconstruct = np.zeros(1).__reduce__()[0]
    return pickle.dumps(Calls(reconstruct, np.ndarray, (0,), b"b", state=state))


def reduced_dtype(name: str, state: tuple[Any, ...] | None) -> Calls:
    return Calls(np.dtype, name, False, True, state=state)


F2_STATE = (3, "<", None, None, None, -1, -1, 0)
# (how it is broken, array state, words of the error)
BROKEN_ARRAYS: list[tuple[str, tuple[Any, ...], str]] = [
    ("too few bytes", (1, (3,), reduced_dtype("f2", F2_STATE), False, b"1234"), "number of bytes"),
    ("too many bytes", (1, (1,), reduced_dtype("f2", F2_STATE), False, b"1234"), "number of bytes"),
    ("negative size", (1, (-1,), reduced_dtype("f2", F2_STATE), False, b""), "tuple of sizes"),
    ("bool size", (1, (True,), reduced_dtype("f2", F2_STATE), False, b"12"), "tuple of sizes"),
    ("no dtype", (1, (1,), None, False, b"12"), "dtype is missing"),
    (
        "object dtype that claims plain bytes",
        (1, (1,), reduced_dtype("O8", (3, "|", None, None, None, -1, -1, 0)), False, b"12345678"),
        "object array",
    ),
    ("object count", (1, (2,), reduced_dtype("O8", None), False, [1]), "object array"),
    (
        "structured",
        (1, (1,), reduced_dtype("V2", (3, "|", None, ("a",), {}, 2, 1, 0)), False, b"12"),
        "not a plain number",
    ),
    (
        "fields on a plain dtype",
        (1, (1,), reduced_dtype("f2", (3, "<", None, ("a",), {}, 2, 1, 0)), False, b"12"),
        "structured or unknown",
    ),
    ("dtype version", (1, (1,), reduced_dtype("f2", (9, "<")), False, b"12"), "structured or unkn"),
    ("text of no width", (1, (10**15,), reduced_dtype("U0", None), False, b""), "elements of 0"),
    ("datetime", (1, (1,), reduced_dtype("M8", None), False, b"12345678"), "not a plain number"),
    ("short state", (1, (1,)), "not NumPy's"),
]


@pytest.mark.parametrize(
    ("state", "words"), [row[1:] for row in BROKEN_ARRAYS], ids=[row[0] for row in BROKEN_ARRAYS]
)
def test_broken_arrays(state: tuple[Any, ...], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        loads(reduced_array(state))


def test_dtype_state_does_not_reach_numpys_own_dtypes() -> None:
    """BUILD with copy=False would change the one float32 of the process, if it were NumPy's."""
    state = (3, ">", None, None, None, -1, -1, 0)
    loads(pickle.dumps(Calls(np.dtype, "f4", False, False, state=state)))
    assert np.dtype("f4").byteorder == "="


# (how it is broken, offset, size, stride, words)
BROKEN_TENSORS: list[tuple[str, Any, Any, Any, str]] = [
    ("past the end", 0, (4,), (1,), "does not fit"),
    ("offset past the end", 2, (2,), (1,), "does not fit"),
    ("stride past the end", 0, (2,), (3,), "does not fit"),
    ("blown up by stride 0", 0, (1 << 40,), (0,), "does not fit"),
    ("negative offset", -1, (1,), (1,), "no storage"),
    ("negative stride", 2, (3,), (-1,), "tuple of sizes"),
    ("strides missing", 0, (3,), (), "has strides ()"),
]


@pytest.mark.parametrize(
    ("offset", "size", "stride", "words"),
    [row[1:] for row in BROKEN_TENSORS],
    ids=[row[0] for row in BROKEN_TENSORS],
)
def test_broken_tensors(offset: Any, size: Any, stride: Any, words: str) -> None:
    rebuild, (storage, *_rest) = torch.arange(3.0).__reduce_ex__(2)
    data = pickle.dumps(Calls(rebuild, storage, offset, size, stride, False, OrderedDict()))
    with pytest.raises(TraceError, match=words):
        loads(data)
