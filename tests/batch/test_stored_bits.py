"""float16 as stored and the factors of layers, for a device that widens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batch.members import Array, D, L, Members, T, job, start, states

from wdsbench import _core

HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("threads", [1, 3])
def test_stored_bits(members: Members, threads: int) -> None:
    shape = (8, 16, 512)
    values = HALVES.reshape(shape)
    place = members.put(values)
    # A scale is left to whoever widens.
    scale = members.put(np.full(8, 4, np.float32))
    files = members.open()
    padded = 16 + 3
    out = np.full(2 * 8 * padded * 512, 0xABCD, np.uint16)
    jobs = [
        job(place, scale=scale, tokens=16, target=target, stride=padded * 512)
        for target in (0, out.size // 2)
    ]
    more = {"layers_stored": 8, "features": 512, "token_padded": padded, "threads": threads}
    start(files, jobs, out, **more).wait()
    body = out.reshape(2, 8, padded, 512)
    for sample in body:
        np.testing.assert_array_equal(sample[:, :16], values.view(np.uint16))
        assert not sample[:, 16:].any()


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "|i1", "<i2", "<i8", "|u1", "<u2", "<u4", "|b1"])
def test_other_dtypes_have_no_stored_bits(members: Members, dtype: str) -> None:
    place = members.put(np.ones((L, T, D), dtype))
    files = members.open()
    with pytest.raises(_core.FormatError, match="is not float16") as caught:
        start(files, [job(place)], np.empty(L * T * D, np.uint16)).wait()
    assert (caught.value.kind, caught.value.sample) == ("dtype", 0)


@pytest.mark.parametrize("dtype", [np.int16, np.float16, np.float64, np.int32])
def test_other_buffers_are_refused(members: Members, dtype: Any) -> None:
    place = members.put(states())
    files = members.open()
    with pytest.raises(TypeError, match="out: must be a C-contiguous NumPy array"):
        start(files, [job(place)], np.empty(L * T * D, dtype))
    with pytest.raises((TypeError, ValueError), match="out"):
        start(files, [job(place)], np.empty((L * T, D), np.uint16))
    with pytest.raises((TypeError, ValueError), match="out"):
        start(files, [job(place)], np.empty(2 * L * T * D, np.uint16)[::2])


def test_scales_of_some_samples(members: Members) -> None:
    factors = np.array([1, 2, 0.5, 2.0**100], np.float32)
    place, scale = members.put(states()), members.put(factors)
    files = members.open()
    table = np.array([job(place), job(place, scale=scale), job(place)], np.int64)
    wanted = np.array([3, 1, 1])
    read = _core.read_scales(files, table, wanted, layers_stored=L)
    assert read.dtype == np.float32
    ones = np.ones(3, np.float32)
    np.testing.assert_array_equal(read, [ones, factors[wanted], ones])
    none = np.empty((0, 10), np.int64)
    assert _core.read_scales(files, none, wanted, layers_stored=L).shape == (0, 3)
    nothing = np.empty(0, np.int64)
    assert _core.read_scales(files, table, nothing, layers_stored=L).shape == (3, 0)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.ones(L + 1, np.float32), "shape"),
        (np.ones((L, 1), np.float32), "shape"),
        (np.ones(L, np.float64), "dtype"),
        (np.ones(L, np.complex64), "dtype"),
    ],
)
def test_a_wrong_scale_is_named(members: Members, array: Array, kind: str) -> None:
    good, bad = members.put(np.ones(L, np.float32)), members.put(array)
    files = members.open()
    table = np.array([job((0, 0), scale=good), job((0, 0), scale=bad)], np.int64)
    with pytest.raises(_core.FormatError) as caught:
        _core.read_scales(files, table, np.arange(L), layers_stored=L)
    error = caught.value
    assert (error.kind, error.sample, error.member) == (kind, 1, "hidden_scale")
    assert bad[0] <= error.offset_bytes <= bad[0] + bad[1]
