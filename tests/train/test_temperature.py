"""Fitted temperatures equal those the labels were drawn with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from wdsbench.errors import DetectorError
from wdsbench.train import metrics
from wdsbench.train.metrics import HIGHEST, LOWEST, fit_temperature, scaled


def draw(count: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return logits and labels that were drawn with just these logits' probabilities."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0.3, 2.0, size=count)
    return logits, generator.random(count) < metrics.sigmoid(logits)


def loss(logits: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    return float(np.mean(np.logaddexp(0, np.where(labels, -logits, logits))))


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0, 12.0])
def test_a_known_factor_is_recovered(factor: float) -> None:
    logits, labels = draw(100_000, seed=1)
    assert fit_temperature(factor * logits, labels) == pytest.approx(factor, rel=0.02)


@pytest.mark.parametrize("factor", [0.2, 3.0, 12.0])
def test_scaling_logits_scales_the_temperature_exactly(factor: float) -> None:
    logits, labels = draw(300, seed=2)
    once = fit_temperature(logits, labels)
    assert fit_temperature(factor * logits, labels) == pytest.approx(factor * once, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_no_other_temperature_has_less_loss(seed: int) -> None:
    logits, labels = draw(200, seed)
    found = fit_temperature(5 * logits, labels)
    least = loss(5 * logits / found, labels)
    for other in np.geomspace(LOWEST, HIGHEST, 400):
        assert least <= loss(5 * logits / other, labels) + 1e-12
    for near in (0.999, 1.001):
        assert least < loss(5 * logits / (found * near), labels)


def test_calibration_is_better_on_samples_that_were_not_fitted() -> None:
    logits, labels = draw(6000, seed=3)
    fitted = np.arange(6000) < 3000
    before = metrics.sigmoid(4 * logits)
    temperature = fit_temperature(metrics.logits_of(before[fitted]), labels[fitted])
    after = scaled(before[~fitted], temperature)
    held = labels[~fitted]
    error = metrics.calibration_error(held, before[~fitted])
    assert error > 0.1
    assert metrics.calibration_error(held, after) < 0.3 * error
    assert metrics.brier_score(held, after) < metrics.brier_score(held, before[~fitted])
    assert metrics.auroc(held, after) == metrics.auroc(held, before[~fitted])


def test_scaled_by_one_is_the_same() -> None:
    probabilities = np.array([0.0, 1e-12, 0.2, 0.5, 0.999, 1.0])
    np.testing.assert_allclose(scaled(probabilities, 1.0), probabilities, rtol=1e-9, atol=1e-15)
    # sigmoid(2 / 4) of sigmoid(2)
    assert scaled([metrics.sigmoid(2.0)], 4.0)[0] == pytest.approx(1 / (1 + math.exp(-0.5)))


def test_what_has_no_best_temperature_ends_at_a_limit() -> None:
    labels = [0, 0, 1, 1]
    assert fit_temperature([-1.0, -2.0, 1.0, 3.0], labels) == LOWEST  # separated: ever surer
    assert fit_temperature([1.0, 2.0, -1.0, -3.0], labels) == HIGHEST  # all wrong: never sure
    assert fit_temperature([1.0, -1.0, 1.0, -1.0], labels) == HIGHEST  # says nothing
    assert fit_temperature([0.0, 0.0, 0.0, 0.0], labels) == 1


def test_saturated_probabilities_are_fitted_too() -> None:
    probabilities = np.array([0.0, 0.0, 1.0, 1.0, 1.0, 0.0])
    temperature = fit_temperature(metrics.logits_of(probabilities), [0, 0, 1, 1, 0, 1])
    # Two of six are wrong: the best probability of being right is 2/3.
    after = scaled(probabilities, temperature)
    np.testing.assert_allclose(after, np.where(probabilities == 1, 2 / 3, 1 / 3), rtol=1e-6)


def test_arguments_are_checked() -> None:
    with pytest.raises(DetectorError, match="one class only"):
        fit_temperature([1.0, 2.0], [1, 1])
    with pytest.raises(ValueError, match="not finite"):
        fit_temperature([1.0, math.inf], [0, 1])
    with pytest.raises(ValueError, match="both"):
        fit_temperature([1.0], [0, 1])
