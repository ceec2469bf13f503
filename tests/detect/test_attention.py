"""Numbers of attention maps against their definitions: determinants and eigenvalues of the maps
themselves, in NumPy loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
import torch
from numpy.typing import NDArray

from wdsbench.detect.attention import (
    HEAD_FEATURES,
    LEAST_WEIGHT,
    TOP_EIGENVALUES,
    AttentionLogistic,
    attention_features,
)
from wdsbench.detect.registry import DetectorShape, detector_spec
from wdsbench.errors import DetectorError
from wdsbench.records import Batch

LAYERS, HEADS = 2, 3


def make_map(tokens: int, seed: int) -> NDArray[np.float64]:
    weights = np.tril(np.random.default_rng(seed).random((HEADS, tokens, tokens)) + 1e-2)
    return weights / weights.sum(axis=-1, keepdims=True)


def make_batch(maps: list[list[NDArray[np.float64]]], prompts: list[int]) -> Batch:
    sketches = [
        torch.from_numpy(np.stack([reference.sketch(layer, prompt) for layer in layers])).float()
        for layers, prompt in zip(maps, prompts, strict=True)
    ]
    labels = torch.zeros(len(maps))
    keys = [f"q{i}-0" for i in range(len(maps))]
    return Batch(
        labels,
        labels,
        torch.tensor([layers[0].shape[1] for layers in maps]),
        torch.tensor(prompts),
        keys,
        keys,
        sketch=sketches,
    )


def slow_features(weights: NDArray[Any], prompt: int) -> list[float]:
    """Return one head's numbers from its map ``[T, T]``."""
    tokens = len(weights)
    answer = range(min(prompt, tokens - 1), tokens)
    part = weights[np.ix_(answer, answer)]
    _, log_determinant = np.linalg.slogdet(part)
    degrees = [sum(weights[i, j] for i in range(j, tokens)) / (tokens - j) for j in range(tokens)]
    laplacian = np.diag(degrees) - weights
    lookbacks, entropies = [], []
    for i in answer:
        if 0 < prompt <= i:
            context = sum(weights[i, :prompt]) / prompt
            fresh = sum(weights[i, prompt : i + 1]) / (i + 1 - prompt)
            lookbacks.append(context / (context + fresh))
        entropies.append(-sum(w * np.log(w) for w in weights[i, : i + 1]))
    eigenvalues = sorted(np.linalg.eigvals(laplacian).real, reverse=True)[:TOP_EIGENVALUES]
    return [
        log_determinant / len(part),
        sum(laplacian[i, i] for i in answer) / len(part),
        sum(lookbacks) / len(lookbacks) if lookbacks else 0.0,
        sum(entropies) / len(part),
        *eigenvalues,
        *[eigenvalues[-1]] * (TOP_EIGENVALUES - len(eigenvalues)),
    ]


def test_features_are_those_of_the_maps() -> None:
    # Long, short, without a prompt, without an answer, one token.
    sizes, prompts = [9, 3, 6, 5, 1], [4, 2, 0, 5, 0]
    maps = [
        [make_map(tokens, 10 * place + layer) for layer in range(LAYERS)]
        for place, tokens in enumerate(sizes)
    ]
    found = attention_features(make_batch(maps, prompts))
    assert found.shape == (5, LAYERS * HEADS, HEAD_FEATURES)
    assert found.dtype == torch.float32
    for place, layers in enumerate(maps):
        for layer, heads in enumerate(layers):
            for head, weights in enumerate(heads):
                np.testing.assert_allclose(
                    found[place, layer * HEADS + head],
                    slow_features(weights, prompts[place]),
                    rtol=1e-4,
                    atol=1e-5,
                )


def test_a_weight_that_became_zero_is_finite() -> None:
    batch = make_batch([[make_map(4, seed) for seed in range(LAYERS)]], [2])
    assert batch.sketch is not None
    batch.sketch[0][..., 0] = 0
    found = attention_features(batch)
    assert found[0, :, 0].tolist() == pytest.approx([np.log(LEAST_WEIGHT)] * LAYERS * HEADS)


def test_an_unknown_prompt_is_named() -> None:
    batch = make_batch([[make_map(4, 0)] * LAYERS], [2])
    batch.prompt_length[0] = -1
    with pytest.raises(DetectorError, match="not available: trace q0-0 has no known prompt length"):
        attention_features(batch)


def test_a_batch_of_none() -> None:
    batch = make_batch([], [])
    assert attention_features(batch).numel() == 0


def test_module_is_a_logistic_regression() -> None:
    module = AttentionLogistic(DetectorShape(1, HEAD_FEATURES, num_heads=2))
    moments = torch.randn(2, HEAD_FEATURES), torch.rand(2, HEAD_FEATURES) + 0.5
    module.scale.set_moments(*moments)
    weight = torch.randn(2 * HEAD_FEATURES, dtype=torch.float64)
    module.set_weights(weight, 0.25)
    features = torch.randn(3, 2, HEAD_FEATURES)
    for row, logit in zip(features, module(features).tolist(), strict=True):
        scaled = ((row - moments[0]) / moments[1]).clamp(-10, 10).flatten()
        expected = sum(w * x for w, x in zip(weight.tolist(), scaled.tolist(), strict=True)) + 0.25
        assert logit == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="do not fit a detector of"):
        module(torch.randn(3, 4, HEAD_FEATURES))


def test_registry_needs_sketches() -> None:
    spec = detector_spec("attention_logistic")
    assert spec.needs.kinds == ("sketch",)
    assert spec.build is not None
    with pytest.raises(DetectorError, match="num_heads is 0; must be at least 1"):
        spec.build(DetectorShape(num_layers=2, num_features=HEAD_FEATURES))
