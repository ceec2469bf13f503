"""The fast way to float16 against the slow one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wdsbench.errors import PackError
from wdsbench.pack.prepare import half_states
from wdsbench.shards.format.wide import to_half

SPECIAL = (None, 0.0, -65504.0, 65519.0, 65520.0, 1e6, -1e30, np.inf, -np.inf)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 70, 1024)])
def test_same_as_slow(dtype: Any, shape: tuple[int, ...]) -> None:
    hidden = np.random.default_rng(0).normal(size=shape).astype(dtype)
    for special in SPECIAL:
        with np.errstate(over="ignore"):
            if special is not None:
                hidden[-1, -1, -1] = special
            ours, theirs = half_states(hidden, overflow="scale"), to_half(hidden, overflow="scale")
        for name in ("values", "scale", "max_abs", "infinities", "error_max"):
            words = f"{name} with {special}"
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), words)
            if getattr(theirs, name) is not None:
                assert getattr(ours, name).dtype == getattr(theirs, name).dtype, words


def test_strided_states() -> None:
    hidden = np.random.default_rng(0).normal(size=(3, 8, 10)).astype(np.float16)[:, ::2, 1:]
    np.testing.assert_array_equal(half_states(hidden, overflow="scale").values, hidden)
    assert half_states(hidden, overflow="scale").values.flags.c_contiguous


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("place", [0, 70_000])
def test_nan_is_refused(dtype: Any, place: int) -> None:
    hidden = np.ones((2, 40, 1024), dtype)
    hidden.reshape(-1)[place] = np.nan
    hidden.reshape(-1)[place + 1] = -np.inf
    with pytest.raises(PackError, match=f"layer {place // (40 * 1024)} holds NaN"):
        half_states(hidden, overflow="scale")


def test_overflow_may_be_an_error() -> None:
    with pytest.raises(PackError, match="layer 0 reaches 100000"):
        half_states(np.array([[[1.0], [1e5]]]), overflow="error")
