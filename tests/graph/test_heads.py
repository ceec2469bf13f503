"""Per-head edges and sketches against their slow twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference

from wdsbench import _core


def maps(layers: int, heads: int, tokens: int, dtype: Any, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    weights = np.tril(rng.random((layers, heads, tokens, tokens)) ** 4 + 1e-4)
    return list((weights / weights.sum(axis=-1, keepdims=True)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("tokens", [1, 2, 3, 17, 40])
@pytest.mark.parametrize("threads", [1, 3])
def test_head_edges(dtype: Any, tokens: int, threads: int) -> None:
    layers = maps(3, 4, tokens, dtype)
    index, weight, pointer = _core.head_edges(layers, 0.05, threads=threads)
    assert pointer.shape == (3 * 4 + 1,)
    expected = [edges for layer in layers for edges in reference.head_edges(layer, 0.05)]
    for number, edges in enumerate(expected):
        own = slice(pointer[number], pointer[number + 1])
        found = zip(*index[:, own].tolist(), weight[own].view(np.float16), strict=True)
        assert list(found) == edges


def test_a_threshold_takes_equal_weights_and_leaves_the_diagonal() -> None:
    attention = np.array([[[1, 0], [0.25, 0.75]]], np.float32)
    index, weight, pointer = _core.head_edges([attention], 0.25)
    assert (index.tolist(), pointer.tolist()) == ([[0], [1]], [0, 1])
    assert weight.view(np.float16).tolist() == [0.25]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("tokens", [1, 2, 17, 40])
@pytest.mark.parametrize("prompt", [None, 1, 5, 40])
def test_sketch(dtype: Any, tokens: int, prompt: int | None) -> None:
    layers = maps(2, 3, tokens, dtype)
    found = _core.sketch(layers, prompt_length=prompt, threads=2)
    assert found.shape == (2, 3, tokens, 4)
    for layer, values in zip(layers, found, strict=True):
        expected = reference.sketch(layer, prompt)
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-7)


def test_the_laplacian_diagonal_by_hand() -> None:
    attention = np.array([[[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]], np.float32)
    values = _core.sketch([attention], prompt_length=None)[0, 0, :, 1]
    # received: 1.75 over 3 tokens, 0.75 over 2, 0.5 over 1; minus the diagonal
    np.testing.assert_allclose(values, [1.75 / 3 - 1, 0.75 / 2 - 0.5, 0.0], rtol=1e-6)


def test_the_log_determinant_is_the_sum_of_logarithms() -> None:
    (attention,) = maps(1, 2, 6, np.float32)
    own = _core.sketch([attention], prompt_length=None)[0, :, :, 0]
    sign, logdet = np.linalg.slogdet(np.tril(attention).astype(np.float64))
    assert (sign == 1).all()
    np.testing.assert_allclose(np.log(own).sum(axis=1), logdet, rtol=1e-5)


@pytest.mark.parametrize("call", ["mean_edges", "head_edges", "sketch"])
def test_what_is_not_finite_is_named(call: str) -> None:
    layers = maps(3, 2, 5, np.float16)
    layers[2][1, 3, 2] = np.inf
    arguments: dict[str, Any] = {
        "mean_edges": {"kind": "top", "value": 0.35},
        "head_edges": {"threshold": 0.05},
        "sketch": {"prompt_length": 2},
    }[call]
    with pytest.raises(_core.FormatError, match="head 1, token 3 to token 2 is not") as caught:
        getattr(_core, call)(layers, **arguments)
    assert (caught.value.sample, caught.value.offset_bytes) == (2, 2 * ((1 * 5 + 3) * 5 + 2))


@pytest.mark.parametrize(
    ("layers", "error", "words"),
    [
        ([np.zeros((2, 3, 4), np.float32)], ValueError, r"needs shape \[H, T, T\]"),
        ([np.zeros((0, 3, 3), np.float32)], ValueError, "at least one head"),
        ([np.zeros((2, 3, 3))], TypeError, "'<f8' is not"),
        ([np.zeros((2, 3, 3), np.float32), np.zeros((1, 3, 3), np.float32)], ValueError, "differ"),
        ([[[1.0]]], TypeError, "list of NumPy arrays"),
    ],
)
def test_maps_of_another_kind(layers: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        _core.head_edges(layers, 0.05)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_thresholds_out_of_range(threshold: float) -> None:
    with pytest.raises(ValueError, match=r"not within 0\.\.1"):
        _core.head_edges([], threshold)
