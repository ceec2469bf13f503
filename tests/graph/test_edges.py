"""Attention to edges: literals readable by eye, then the reference on random maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from trials import FULL_ONLY

from wdsbench import _core


def edges(attention: np.ndarray[Any, Any], kind: str, value: float) -> list[tuple[int, int, Any]]:
    index, weight, pointer = _core.mean_edges([attention], kind, value)
    assert pointer.tolist() == [0, weight.size]
    return list(zip(*index.tolist(), weight.view(np.float16), strict=True))


FOUR = np.array(
    [[[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.5, 0.25, 0], [0.25, 0.25, 0.25, 0.25]]], np.float32
)


def test_top_keeps_one_at_least_and_the_smaller_index_of_equals() -> None:
    assert edges(FOUR, "top", 0.35) == [(0, 1, 0.5), (1, 2, 0.5), (0, 3, 0.25)]


def test_top_of_all_keeps_all() -> None:
    assert edges(FOUR, "top", 1.0) == [
        (0, 1, 0.5),
        (0, 2, 0.25),
        (1, 2, 0.5),
        (0, 3, 0.25),
        (1, 3, 0.25),
        (2, 3, 0.25),
    ]


def test_threshold_takes_equal_weights() -> None:
    assert edges(FOUR, "threshold", 0.5) == [(0, 1, 0.5), (1, 2, 0.5)]


def test_threshold_may_leave_nothing() -> None:
    assert edges(FOUR, "threshold", 0.75) == []


def test_one_token_has_no_edges() -> None:
    assert edges(np.ones((2, 1, 1), np.float16), "top", 0.35) == []


def test_the_mean_is_over_heads() -> None:
    heads = np.zeros((2, 2, 2), np.float16)
    heads[:, 1, 0] = [0.25, 0.75]
    assert edges(heads, "top", 0.35) == [(0, 1, 0.5)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("kind", "value"), [("top", 0.35), ("top", 0.0), ("threshold", 0.05)])
@pytest.mark.parametrize(
    "tokens", [1, 2, 3, 17, 129, *(pytest.param(tokens, marks=FULL_ONLY) for tokens in (70, 140))]
)
def test_against_the_reference(dtype: Any, kind: str, value: float, tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    attention = rng.random((5, tokens, tokens)).astype(dtype)
    attention[:, :, 1::3] = attention[:, :, :1]  # ties
    assert edges(attention, kind, value) == reference.mean_edges(attention, kind, value)


def test_what_lies_above_the_diagonal_is_not_looked_at() -> None:
    attention = FOUR.copy()
    attention[0, 0, 3] = np.nan
    assert edges(attention, "top", 0.35) == edges(FOUR, "top", 0.35)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_refused_with_its_place(bad: float) -> None:
    attention = np.concatenate([FOUR, FOUR])
    attention[1, 2, 1] = bad
    with pytest.raises(_core.FormatError, match="head 1, token 2 to token 1") as caught:
        _core.mean_edges([attention], "top", 0.35)
    assert caught.value.offset_bytes == (1 * 16 + 2 * 4 + 1) * 4


@pytest.mark.parametrize(
    ("attention", "kind", "value", "error"),
    [
        (FOUR.astype(np.float64), "top", 0.35, TypeError),
        (np.asfortranarray(np.ones((2, 3, 3), np.float32)), "top", 0.35, TypeError),
        (FOUR[0], "top", 0.35, ValueError),
        (FOUR[:, :2], "top", 0.35, ValueError),
        (FOUR[:0], "top", 0.35, ValueError),
        (FOUR, "bottom", 0.35, ValueError),
        (FOUR, "top", 1.5, ValueError),
        (FOUR, "top", float("nan"), ValueError),
    ],
)
def test_wrong_arguments(attention: Any, kind: str, value: float, error: type[Exception]) -> None:
    with pytest.raises(error):
        _core.mean_edges([attention], kind, value)
