"""npy headers: what NumPy writes is read, what nobody should write is refused with its place."""

from __future__ import annotations

import io
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsbench import _core

DTYPES = ["<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "|b1"]


def member_of(array: Any, version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version)
    return stream.getvalue()


def hand_made(text: str, payload: bytes = b"", version: int = 1) -> bytes:
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode("latin1") + payload


SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (2, 3), (2, 3, 4), (1,) * 8]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_what_numpy_writes(version: tuple[int, int]) -> None:
    for descr, shape in itertools.product(DTYPES, SHAPES):
        member = member_of(np.zeros(shape, descr), version)
        parsed, parsed_shape, offset = _core.parse_npy_header(member, len(member))
        assert (parsed, parsed_shape) == (descr, shape)
        assert len(member) - offset == np.zeros(shape, descr).nbytes


GOOD = "{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }\n"

# (what is broken, member, kind, offset)
BROKEN = [
    ("empty", b"", "magic", 0),
    ("magic", b"\x93NUMPX" + bytes(20), "magic", 0),
    ("cut after magic", b"\x93NUMPY", "truncated", 6),
    ("version 4", hand_made(GOOD, bytes(4), version=4), "header", 6),
    ("cut header", hand_made(GOOD)[:30], "truncated", 30),
    ("no payload", hand_made(GOOD), "size", 68),
    ("trailing bytes", hand_made(GOOD, bytes(5)), "size", 68),
    ("huge header", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(50), "header", 8),
    ("code", hand_made("{'descr': __import__('os'), 'shape': (2,)}\n"), "header", 20),
    ("object", member_of(np.array([None])), "dtype", 20),
    ("big-endian", member_of(np.zeros(2, ">f2")), "dtype", 20),
    ("complex", member_of(np.zeros(2, "<c8")), "dtype", 20),
    ("string", member_of(np.zeros(2, "<U3")), "dtype", 20),
    ("structured", member_of(np.zeros(2, [("a", "<f2")])), "dtype", 20),
    ("Fortran", member_of(np.zeros((2, 3), "<f2", order="F")), "shape", 44),
    ("nine axes", member_of(np.zeros((1,) * 9, "<f2")), "shape", 85),
    ("shape overflow", hand_made(GOOD.replace("(2,)", f"({2**64},)")), "shape", 80),
    (
        "product overflow",
        hand_made(GOOD.replace("(2,)", f"({2**32}, {2**32})")),
        "size",
        10,
    ),
    ("one axis without comma", hand_made(GOOD.replace("(2,)", "(2)")), "header", 62),
    ("negative axis", hand_made(GOOD.replace("(2,)", "(-2,)")), "header", 61),
    ("missing key", hand_made("{'descr': '<f2', 'shape': (2,), }\n"), "header", 44),
    ("repeated key", hand_made("{'descr': '<f2', 'descr': '<f2', }\n"), "header", 27),
    ("unknown key", hand_made("{'descr': '<f2', 'x': 1, }\n"), "header", 27),
    ("no newline", hand_made(GOOD.rstrip() + " "), "header", 67),
    ("after the dictionary", hand_made(GOOD.rstrip() + "x\n"), "header", 67),
    ("endless string", hand_made("{'descr': '<f2"), "header", 24),
]


@pytest.mark.parametrize(
    ("member", "kind", "offset"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_broken(member: bytes, kind: str, offset: int) -> None:
    with pytest.raises(_core.FormatError) as caught:
        _core.parse_npy_header(member, len(member))
    assert (caught.value.kind, caught.value.offset_bytes) == (kind, offset)


def offset_of_error(member: bytes) -> int:
    """Return where a member is refused; 0 where it is read."""
    try:
        _core.parse_npy_header(member, len(member))
    except _core.FormatError as error:
        return error.offset_bytes
    return 0


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    member = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    assert 0 <= offset_of_error(member) <= len(member)


@given(st.binary(min_size=1, max_size=4), st.integers(0, 67))
def test_a_damaged_header_is_read_or_refused(noise: bytes, at: int) -> None:
    member = bytearray(hand_made(GOOD, bytes(4)))
    member[at : at + len(noise)] = noise
    assert 0 <= offset_of_error(bytes(member)) <= len(member)
