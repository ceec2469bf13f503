"""Streaming moments against NumPy over everything at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from wdsbench.detect.scale import (
    LEAST_WEIGHT,
    LIMIT,
    WEIGHT_LIMIT,
    RunningMoments,
    ScaleWeights,
    Standardise,
    log_weights,
)
from wdsbench.errors import DetectorError


def states(count: int = 257) -> torch.Tensor:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, 2, 3)) * [[1, 10, 100], [0.1, 1, 1000]] + [[5], [-3000]]
    return torch.from_numpy(x.astype(np.float32))


@pytest.mark.parametrize("batch_size", [1, 2, 64, 257])
def test_moments_equal_numpy_however_the_stream_is_cut(batch_size: int) -> None:
    x = states()
    running = RunningMoments()
    for part in x.split(batch_size):
        running.update(part)
    running.update(x[:0])
    mean, std = running.finish()
    assert running.count == 257
    np.testing.assert_allclose(mean, x.double().numpy().mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(std, x.double().numpy().std(axis=0), rtol=1e-4)


def test_moments_keep_nothing_of_a_batch() -> None:
    x = states()
    memory = torch.empty(50, 2, 3)
    running = RunningMoments()
    for part in x[:250].split(50):
        running.update(memory.copy_(part))
    memory.fill_(torch.nan)
    np.testing.assert_allclose(running.finish()[0], x[:250].double().mean(dim=0), rtol=1e-5)


def test_standardised_states_have_zero_mean_and_unit_spread() -> None:
    x = states()
    running = RunningMoments()
    running.update(x)
    scale = Standardise(2, 3)
    scale.set_moments(*running.finish())
    y = scale(x)
    np.testing.assert_allclose(y.mean(dim=0), np.zeros((2, 3)), atol=1e-3)
    np.testing.assert_allclose(y.std(dim=0, correction=0), np.ones((2, 3)), rtol=1e-3)
    rows = scale.rows(x.flatten(0, 1), torch.tensor([0, 1]).repeat(257))
    assert torch.equal(rows.view(257, 2, 3), y)


def test_constant_feature_becomes_zero_and_extremes_are_cut() -> None:
    x = torch.tensor([[[7.25, -1.0]], [[7.25, 1.0]]])
    running = RunningMoments()
    running.update(x)
    mean, std = running.finish()
    assert std.tolist() == [[1.0, 1.0]]
    scale = Standardise(1, 2)
    scale.set_moments(mean, std)
    assert scale(torch.tensor([[[7.25, 1e30]]])).tolist() == [[[0.0, LIMIT]]]


def test_scale_travels_with_the_weights() -> None:
    scale = Standardise(1, 2)
    scale.set_moments(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    assert scale.state_dict()["mean"].tolist() == [[1.0, 2.0]]
    assert scale.state_dict()["std"].tolist() == [[3.0, 4.0]]


def test_bad_moments_are_refused() -> None:
    with pytest.raises(DetectorError, match="no training sample"):
        RunningMoments().finish()
    running = RunningMoments()
    running.update(torch.tensor([[[1.0], [torch.inf]]]))
    with pytest.raises(DetectorError, match=r"layers \[1\]"):
        running.finish()
    with pytest.raises(ValueError, match="do not fit"):
        Standardise(2, 3).set_moments(torch.zeros(2, 2), torch.ones(2, 2))


def test_weights_are_scaled_by_their_logarithms() -> None:
    weights = torch.tensor([[1.0], [0.5], [0.25], [0.0], [LEAST_WEIGHT / 8]])
    running = RunningMoments()
    running.update(log_weights(weights[:3]).view(-1, 1, 1))
    scale = ScaleWeights()
    scale.set_moments(*running.finish())
    # 0, -log 2 and -2 log 2 are sqrt(3/2) deviations apart.
    found = scale(weights).flatten().tolist()
    assert found[:3] == pytest.approx([1.5**0.5, 0, -(1.5**0.5)], abs=1e-6)
    # 2**-14 is 13 of these distances below 0.5: further out than the limit.
    assert found[3:] == [-WEIGHT_LIMIT, -WEIGHT_LIMIT]
    assert log_weights(weights[3:]).flatten().tolist() == pytest.approx(
        [math.log(LEAST_WEIGHT)] * 2
    )


def test_scale_of_weights_is_part_of_the_weights_file() -> None:
    with pytest.raises(RuntimeError, match="Missing key"):
        ScaleWeights().load_state_dict({})
    scale, again = ScaleWeights(), ScaleWeights()
    scale.set_moments(torch.tensor([[-1.5]]), torch.tensor([[0.8]]))
    again.load_state_dict(scale.state_dict())
    weights = torch.rand(7, 1)
    assert torch.equal(again(weights), scale(weights))
    with pytest.raises(RuntimeError, match="logarithmic is False, must be True"):
        again.load_state_dict({**scale.state_dict(), "logarithmic": torch.tensor(False)})
