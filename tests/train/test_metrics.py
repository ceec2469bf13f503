"""Metrics against values worked out by hand and against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score, roc_curve
from trials import FULL_ONLY

from wdsbench.errors import DetectorError
from wdsbench.train import metrics


def test_auroc_of_literals() -> None:
    assert metrics.auroc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == 0.75
    assert metrics.auroc([0, 1], [2.0, 1.0]) == 0.0
    assert metrics.auroc([0, 1, 0, 1], [1.0, 1.0, 1.0, 1.0]) == 0.5


def test_auprc_of_literals() -> None:
    # Precision is 1 at the first hit (recall 1/2) and 2/3 at the second.
    assert metrics.auprc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == pytest.approx(0.5 + 0.5 * 2 / 3)


def test_false_positive_rate_of_literals() -> None:
    labels = [1, 1, 1, 0, 0, 0, 0]
    # All three hallucinations are found at 0.5, where one of four right answers is called one too.
    assert metrics.false_positive_rate(labels, [0.9, 0.8, 0.5, 0.6, 0.4, 0.3, 0.1]) == 0.25


def test_false_positive_rate_is_read_off_the_full_curve() -> None:
    generator = np.random.default_rng(0)
    labels = generator.random(300) < 0.4
    scores = np.round(generator.normal(size=300) + labels, 1)
    false_rate, true_rate, _ = roc_curve(labels, scores, drop_intermediate=False)
    expected = min(f for f, t in zip(false_rate, true_rate, strict=True) if t >= 0.95)
    assert metrics.false_positive_rate(labels, scores) == expected


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=FULL_ONLY) for n in range(1, 5))])
@pytest.mark.parametrize("digits", [0, 1, 8])
def test_best_threshold_has_the_best_f1_of_all(seed: int, digits: int) -> None:
    generator = np.random.default_rng(seed)
    labels = generator.random(80) < 0.4
    scores = np.round(generator.normal(size=80) + labels, digits)
    threshold = metrics.best_threshold(labels, scores)
    every = [f1_score(labels, scores >= cut) for cut in np.unique(scores)]
    assert metrics.at_threshold(labels, scores, threshold)[0] == max(every)


def test_best_threshold_lies_between_scores() -> None:
    assert metrics.best_threshold([0, 0, 1, 1], [0.0, 1.0, 2.0, 3.0]) == 1.5
    # Calling everything hallucinated is best here: the lowest score is the threshold.
    assert metrics.best_threshold([1, 0, 1], [0.0, 1.0, 2.0]) == 0.0


def test_best_threshold_between_neighbouring_floats_separates_them() -> None:
    low = 0.1
    high = math.nextafter(low, 1)
    threshold = metrics.best_threshold([0, 1], [low, high])
    assert low < threshold <= high


def test_metrics_at_a_threshold() -> None:
    assert metrics.at_threshold([0, 0, 1, 1], [0.1, 0.6, 0.4, 0.8], 0.6) == (0.5, 0.5)


def test_calibration_error_of_literals() -> None:
    # A bin of four at 0.8 has three hits (gap 0.05), one of two at 0.1 has none (gap 0.1).
    labels = [1, 1, 1, 0, 0, 0]
    error = metrics.calibration_error(labels, [0.8, 0.8, 0.8, 0.8, 0.1, 0.1])
    assert error == pytest.approx((4 * 0.05 + 2 * 0.1) / 6)
    assert metrics.calibration_error([0, 1], [0.0, 1.0]) == 0.0
    with pytest.raises(ValueError, match="sigmoid"):
        metrics.calibration_error([0, 1], [0.0, 1.5])


def test_reliability_bins_of_literals() -> None:
    found = metrics.reliability_bins([1, 0, 1, 1], [0.1, 0.3, 0.9, 1.0], bins=4)
    assert found.count.tolist() == [1, 1, 0, 2]
    np.testing.assert_allclose(found.probability, [0.1, 0.3, np.nan, 0.95])
    np.testing.assert_allclose(found.share, [1, 0, np.nan, 1])
    with pytest.raises(ValueError, match="sigmoid"):
        metrics.reliability_bins([0, 1], [-0.1, 0.5])


def test_calibration_error_is_the_gap_of_the_bins() -> None:
    generator = np.random.default_rng(0)
    probabilities = generator.random(400)
    labels = generator.random(400) < probabilities**2
    place = np.minimum((probabilities * 15).astype(int), 14)
    gaps = [
        np.sum(place == b) * abs(np.mean(labels[place == b]) - np.mean(probabilities[place == b]))
        for b in np.unique(place)
    ]
    assert metrics.calibration_error(labels, probabilities) == pytest.approx(sum(gaps) / 400)


def test_brier_score_of_literals() -> None:
    assert metrics.brier_score([0, 1], [0.2, 0.9]) == pytest.approx((0.04 + 0.01) / 2)
    assert metrics.brier_score([0, 1], [0.0, 1.0]) == 0
    with pytest.raises(ValueError, match=r"1 probabilities lie outside \[0, 1\], the first is 1.5"):
        metrics.brier_score([0, 1], [0.0, 1.5])


def test_sigmoid_survives_large_logits() -> None:
    assert metrics.sigmoid([-1e4, 0.0, 1e4]).tolist() == [0.0, 0.5, 1.0]
    # Small probabilities keep their digits: they are not ties.
    np.testing.assert_allclose(metrics.sigmoid([-40.0, -41.0]), np.exp([-40.0, -41.0]), rtol=1e-12)


def test_logits_come_back_from_probabilities() -> None:
    logits = np.linspace(-36, 20, 57)
    np.testing.assert_allclose(metrics.logits_of(metrics.sigmoid(logits)), logits, rtol=1e-7)
    ends = metrics.logits_of([0.0, 1e-300, 1.0])
    assert np.isfinite(ends).all()
    assert ends[0] == ends[1] == -ends[2]
    assert ends[2] == pytest.approx(53 * math.log(2))
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="sigmoid"):
            metrics.logits_of([0.5, bad])


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize(
    "metric",
    [
        metrics.auroc,
        metrics.auprc,
        metrics.best_threshold,
        metrics.false_positive_rate,
        metrics.calibration_error,
        metrics.brier_score,
    ],
)
def test_one_class_is_refused(metric: object, label: int) -> None:
    assert callable(metric)
    with pytest.raises(DetectorError, match=r"one class only.*--threshold"):
        metric([label] * 3, [0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("labels", "scores", "words"),
    [
        ([0, 1], [0.1], "both"),
        ([0, 2], [0.1, 0.2], "0 and 1"),
        ([0, math.nan], [0.1, 0.2], "0 and 1"),
        ([0, 1], [0.1, math.nan], "not finite"),
        ([0, 1], [0.1, math.inf], "not finite"),
    ],
)
def test_bad_arguments_are_refused(labels: list[float], scores: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        metrics.auroc(labels, scores)


def test_auroc_equals_scikit_learn() -> None:
    generator = np.random.default_rng(1)
    labels = generator.random(500) < 0.3
    scores = np.round(generator.normal(size=500) + labels, 1)
    assert metrics.auroc(labels, scores) == roc_auc_score(labels, scores)
