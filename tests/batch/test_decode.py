"""decode_rows on hand-made members: every dtype, scales, bounds, and damage with its place."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from wdsbench import _core

L, T, D = 4, 5, 6


@pytest.fixture
def file(tmp_path: Path) -> Iterator[BinaryIO]:
    with (tmp_path / "members").open("w+b") as opened:
        yield opened


def put(file: BinaryIO, array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Append a member at an odd place and return (offset, size)."""
    stream = io.BytesIO()
    np.save(stream, array)
    file.seek(0, io.SEEK_END)
    file.write(b"odd")
    offset = file.tell()
    file.write(stream.getvalue())
    file.flush()
    return offset, len(stream.getvalue())


def job(
    member: tuple[int, int],
    *,
    scale: tuple[int, int] = (0, 0),
    tokens: int = T,
    first: int = 0,
    count: int = T,
    target: int = 0,
    stride: int = T * D,
) -> list[int]:
    return [0, *member, *scale, tokens, first, count, target, stride]


def decode(
    file: BinaryIO,
    jobs: list[list[int]],
    out: np.ndarray[Any, Any],
    layers: Any = range(L),
    *,
    start: bool = False,
    **options: Any,
) -> np.ndarray[Any, Any]:
    """Decode by decode_rows, or with ``start`` in the background."""
    arguments = {"layers_stored": L, "features": D, "token_padded": 0, "threads": 2}
    path = Path(file.name)
    files = _core.ShardFiles([os.fsencode(path)], [path.stat().st_size], limit=1)
    rows = np.array(jobs, np.int64).reshape(-1, 10), np.array(list(layers), np.int64)
    if start:
        _core.start_rows(files, *rows, out=out, **{**arguments, **options}).wait()
    else:
        _core.decode_rows(files, *rows, out=out, **{**arguments, **options})
    return out


def states(dtype: Any = np.float16, seed: int = 0) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).normal(size=(L, T, D)) * 10).astype(dtype)


@pytest.mark.parametrize(
    "dtype", ["<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "|b1"]
)
@pytest.mark.parametrize("threads", [1, 3])
def test_every_dtype(file: BinaryIO, dtype: str, threads: int) -> None:
    values = np.abs(states()).astype(dtype)
    out = decode(file, [job(put(file, values))], np.empty(L * T * D, np.float32), threads=threads)
    np.testing.assert_array_equal(out.reshape(L, T, D), values.astype(np.float32))


def test_scale_is_multiplied_back(file: BinaryIO) -> None:
    values, scale = states(), np.array([1, 2, 1, 64], np.float32)
    places = put(file, values), put(file, scale)
    out = decode(file, [job(places[0], scale=places[1])], np.empty(L * T * D, np.float32))
    expected = values.astype(np.float32) * scale[:, None, None]
    np.testing.assert_array_equal(out.reshape(L, T, D), expected)


def test_scale_with_chosen_layers_and_tokens(file: BinaryIO) -> None:
    values, scale = states(), np.array([1, 2, 4, 8], np.float32)
    places = put(file, values), put(file, scale)
    row = job(places[0], scale=places[1], first=1, count=2, stride=2 * D)
    out = decode(file, [row], np.empty(3 * 2 * D, np.float32), layers=[3, 0, 1])
    expected = (values.astype(np.float32) * scale[:, None, None])[[3, 0, 1], 1:3]
    np.testing.assert_array_equal(out.reshape(3, 2, D), expected)


def test_more_bytes_than_the_scratch_holds(file: BinaryIO) -> None:
    values = np.random.default_rng(1).normal(size=(2, 40, 3001)).astype(np.float16)
    row = job(put(file, values), tokens=40, count=40, stride=40 * 3001)
    out = decode(
        file,
        [row],
        np.empty(values.size, np.float32),
        layers=[0, 1],
        layers_stored=2,
        features=3001,
    )
    np.testing.assert_array_equal(out.reshape(values.shape), values.astype(np.float32))


def test_padding_is_zero_and_nothing_else_is_touched(file: BinaryIO) -> None:
    values = states()
    out = np.full(2 + L * 7 * D + 3, 99, np.float32)
    row = job(put(file, values), target=2, stride=7 * D)
    decode(file, [row], out, token_padded=7)
    body = out[2:-3].reshape(L, 7, D)
    np.testing.assert_array_equal(body[:, :T], values.astype(np.float32))
    assert (body[:, T:] == 0).all()
    assert (out[:2] == 99).all()
    assert (out[-3:] == 99).all()


def test_many_samples_on_many_threads(file: BinaryIO) -> None:
    every = [states(seed=i) for i in range(50)]
    rows = [job(put(file, v), target=i * L * T * D) for i, v in enumerate(every)]
    out = decode(file, rows, np.empty(50 * L * T * D, np.float32), threads=8)
    np.testing.assert_array_equal(out.reshape(50, L, T, D), np.stack(every).astype(np.float32))


def test_no_samples_and_no_layers(file: BinaryIO) -> None:
    decode(file, [], np.empty(0, np.float32))
    decode(file, [job(put(file, states()))], np.empty(0, np.float32), layers=[])


# (how the member is broken, kind)
WRONG_MEMBERS: list[tuple[str, np.ndarray[Any, Any], str]] = [
    ("layers", np.zeros((L + 1, T, D), np.float16), "shape"),
    ("tokens", np.zeros((L, T - 1, D), np.float16), "shape"),
    ("axes", np.zeros((L, T * D), np.float16), "shape"),
    ("dtype", np.zeros((L, T, D), np.complex64), "dtype"),
]


@pytest.mark.parametrize(
    ("array", "kind"), [row[1:] for row in WRONG_MEMBERS], ids=[row[0] for row in WRONG_MEMBERS]
)
def test_a_wrong_member_is_named(file: BinaryIO, array: np.ndarray[Any, Any], kind: str) -> None:
    good, bad = put(file, states()), put(file, array)
    rows = [job(good), job(good), job(bad)]
    with pytest.raises(_core.FormatError) as caught:
        decode(file, rows, np.empty(L * T * D, np.float32))
    assert (caught.value.kind, caught.value.sample, caught.value.member) == (kind, 2, "hidden")
    assert bad[0] <= caught.value.offset_bytes < bad[0] + bad[1]


def test_a_wrong_scale_is_named(file: BinaryIO) -> None:
    places = put(file, states()), put(file, np.ones(L + 1, np.float32))
    with pytest.raises(_core.FormatError) as caught:
        decode(file, [job(places[0], scale=places[1])], np.empty(L * T * D, np.float32))
    assert (caught.value.kind, caught.value.member) == ("shape", "hidden_scale")


def test_a_file_that_ends_too_soon(file: BinaryIO) -> None:
    offset, size = put(file, states())
    file.truncate(offset + size - 10)
    with pytest.raises(_core.FormatError, match="10 bytes of the member are missing") as caught:
        decode(file, [job((offset, size))], np.empty(L * T * D, np.float32))
    assert (caught.value.kind, caught.value.offset_bytes) == ("truncated", offset + size - 10)


def test_a_shard_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    files = _core.ShardFiles([os.fsencode(tmp_path / "none")], [10], limit=1)
    rows = np.zeros((2, 10), np.int64)
    with pytest.raises(_core.FormatError, match="cannot open: No such file") as caught:
        _core.start_rows(
            files,
            rows,
            np.arange(L),
            layers_stored=L,
            features=D,
            token_padded=0,
            out=np.empty(0, np.float32),
            threads=1,
        )
    assert (caught.value.kind, caught.value.sample) == ("io", 0)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"target": 1}, {}, "outside the batch buffer"),
        ({"stride": T * D + 1}, {}, "outside the batch buffer"),
        ({"stride": 2**61}, {}, "outside the batch buffer"),
        ({"target": 2**62}, {}, "outside the batch buffer"),
        ({"first": 1}, {}, r"tokens \[1, 6\) are not among the 5 stored"),
        ({"first": 2**62, "count": 2**62}, {}, "not among the 5 stored"),
        ({}, {"token_padded": T + 1}, "outside the batch buffer"),
        ({}, {"layers": [L]}, "layer 4 is not one of the 4 stored"),
        ({"target": -1}, {}, "row 0: target is negative"),
    ],
)
def test_places_outside_the_buffer(
    file: BinaryIO, changes: dict[str, int], options: dict[str, Any], message: str
) -> None:
    row = job(put(file, states()), **changes)
    with pytest.raises(ValueError, match=message):
        decode(file, [row], np.empty(L * T * D, np.float32), **options)


def test_arrays_are_never_converted(file: BinaryIO) -> None:
    row = job(put(file, states()))
    with pytest.raises(TypeError, match="out: must be a C-contiguous NumPy array of float32"):
        decode(file, [row], np.empty(L * T * D, np.float64))
    read_only = np.empty(L * T * D, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="out: is read-only"):
        decode(file, [row], read_only)


def test_columns_have_names() -> None:
    for columns in (_core.ROWS_COLUMNS, _core.EDGES_COLUMNS, _core.HEADS_COLUMNS):
        assert columns[0] == "shard"
        assert len(set(columns)) == len(columns)
    assert "layer_stride" in _core.ROWS_COLUMNS
    assert set(_core.HEADS_COLUMNS) - set(_core.EDGES_COLUMNS) == {"prompt_length"}
