"""float16 without new infinities: exact powers of two, measured errors, NaN refused."""

from __future__ import annotations

import numpy as np
import pytest

from wdsbench.errors import PackError
from wdsbench.shards.format.wide import HALF_MAX, to_half


def test_what_fits_is_only_rounded() -> None:
    hidden = np.array([[[1.0, 65504.0]], [[0.1, -65504.0]]], np.float32)
    states = to_half(hidden)
    assert states.scale is None
    np.testing.assert_array_equal(states.values, hidden.astype(np.float16))
    np.testing.assert_array_equal(states.max_abs, [65504.0, 65504.0])
    assert not states.error_max.any()


def test_float16_is_stored_as_it_is() -> None:
    hidden = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float16)
    np.testing.assert_array_equal(to_half(hidden).values, hidden)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wide_layers_alone_get_a_power_of_two(dtype: type) -> None:
    rng = np.random.default_rng(0)
    hidden = (rng.normal(size=(3, 5, 7)) * np.array([1.0, 3e5, 1e6])[:, None, None]).astype(dtype)
    states = to_half(hidden)
    assert states.scale is not None
    assert states.scale[0] == 1
    assert (np.log2(states.scale) % 1 == 0).all()
    assert np.isfinite(states.values).all()
    decoded = states.values.astype(np.float64) * states.scale[:, None, None]
    error = np.abs(decoded - hidden).reshape(3, -1).max(axis=1)
    np.testing.assert_allclose(states.error_max[1:], error[1:])
    # Half an ulp of float16 at the layer's scale.
    assert (error[1:] <= states.max_abs[1:] * 2**-11).all()


def test_a_value_that_would_round_to_infinity_is_scaled() -> None:
    states = to_half(np.array([[[65520.0]]], np.float32))
    assert states.scale is not None
    assert states.scale.tolist() == [2.0]
    assert states.values.item() == 32768.0  # 32760 is a tie, to even


def test_infinities_that_were_there_stay_and_are_counted() -> None:
    hidden = np.array([[[np.inf, 1e6, -np.inf]]], np.float32)
    states = to_half(hidden)
    assert states.infinities.tolist() == [2]
    assert states.values[0, 0, 0] == np.inf
    assert states.values[0, 0, 2] == -np.inf
    assert states.max_abs.tolist() == [1e6]


def test_overflow_error_names_the_layer() -> None:
    with pytest.raises(PackError, match="layer 1 reaches 100000"):
        to_half(np.array([[[1.0]], [[1e5]]], np.float32), overflow="error")


@pytest.mark.parametrize("value", [3.4028e38, 1e39, 1e300])
def test_what_float32_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(PackError, match=r"layer 0 reaches .*, float32 ends at"):
        to_half(np.array([[[value]]], np.float64))


def test_the_largest_value_survives() -> None:
    states = to_half(np.array([[[HALF_MAX * 2.0**112]]], np.float32))
    assert states.scale is not None
    assert np.float32(states.values[0, 0, 0]) * states.scale[0] == np.float32(HALF_MAX * 2.0**112)


def test_nan_is_refused_with_its_layer() -> None:
    with pytest.raises(PackError, match="layer 1 holds NaN"):
        to_half(np.array([[[1.0]], [[np.nan]]], np.float32))
