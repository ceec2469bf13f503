"""The vectorised bootstrap against scikit-learn on each resample, and against theory."""

from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from wdsbench.errors import DetectorError
from wdsbench.train import bootstrap


def draw(
    count: int, shift: float, seed: int, digits: int = 8
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 3 == 0
    return labels, np.round(generator.normal(size=count) + shift * labels, digits)


@pytest.mark.parametrize("digits", [0, 1, 8])
def test_weighted_auroc_equals_scikit_learn_on_each_resample(digits: int) -> None:
    labels, scores = draw(60, 0.7, seed=3, digits=digits)
    counts = np.random.default_rng(0).integers(0, 4, size=(25, 60))
    expected = [
        roc_auc_score(np.repeat(labels, row), np.repeat(scores, row), sample_weight=None)
        for row in counts
    ]
    np.testing.assert_allclose(
        bootstrap.weighted_auroc(labels, scores, counts), expected, rtol=0, atol=1e-12
    )


def test_resamples_keep_the_classes_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, _ = draw(31, 0.0, seed=0)
    monkeypatch.setattr(bootstrap, "CHUNK_COUNTS", 31 * 4)  # several chunks, the last one short
    chunks = list(bootstrap._resample_counts(labels, seed=1, resamples=10))
    assert [len(chunk) for chunk in chunks] == [4, 4, 2]
    counts = np.concatenate(chunks)
    assert (counts[:, labels].sum(axis=1) == labels.sum()).all()
    assert (counts[:, ~labels].sum(axis=1) == (~labels).sum()).all()
    assert len(np.unique(counts, axis=0)) == 10


def test_interval_holds_the_value_and_repeats_with_its_seed() -> None:
    labels, scores = draw(300, 1.0, seed=5)
    first = bootstrap.auroc_interval(labels, scores, seed=7)
    assert first.low < first.value < first.high
    assert first.value == roc_auc_score(labels, scores)
    assert first == bootstrap.auroc_interval(labels, scores, seed=7)
    assert first != bootstrap.auroc_interval(labels, scores, seed=8)


def test_interval_widens_with_confidence_and_narrows_with_samples() -> None:
    def width(count: int, confidence: float) -> float:
        labels, scores = draw(count, 1.0, seed=5)
        interval = bootstrap.auroc_interval(labels, scores, confidence=confidence)
        return interval.high - interval.low

    assert width(300, 0.8) < width(300, 0.95) < width(300, 0.999)
    assert width(1200, 0.95) < 0.7 * width(300, 0.95)


def test_width_is_that_of_hanley_and_mcneil() -> None:
    labels, scores = draw(900, 1.0, seed=2)
    interval = bootstrap.auroc_interval(labels, scores, resamples=4000)
    area, positives, negatives = interval.value, 300, 600
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    variance = (
        area * (1 - area) + (positives - 1) * (q1 - area**2) + (negatives - 1) * (q2 - area**2)
    ) / (positives * negatives)
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * variance**0.5, rel=0.12)


def test_paired_difference_is_tight_where_scores_agree() -> None:
    labels, scores = draw(300, 1.0, seed=5)
    same = bootstrap.paired_difference(labels, scores, 3 * scores + 1)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    close = bootstrap.paired_difference(labels, scores + 0.2 * labels, scores)
    alone = bootstrap.auroc_interval(labels, scores)
    assert close.low > 0
    assert close.high - close.low < 0.3 * (alone.high - alone.low)


def test_paired_difference_changes_sign_when_swapped() -> None:
    labels, scores = draw(200, 1.0, seed=5)
    _, others = draw(200, 0.5, seed=6)
    one = bootstrap.paired_difference(labels, scores, others)
    other = bootstrap.paired_difference(labels, others, scores)
    assert (one.value, one.low, one.high) == pytest.approx((-other.value, -other.high, -other.low))


def test_one_class_is_refused() -> None:
    with pytest.raises(DetectorError, match="one class only"):
        bootstrap.auroc_interval([1, 1], [0.1, 0.2])
    with pytest.raises(DetectorError, match="one class only"):
        bootstrap.paired_difference([0, 0], [0.1, 0.2], [0.1, 0.2])


def test_two_thousand_resamples_are_quick() -> None:
    labels, scores = draw(600, 1.0, seed=5)
    started = time.perf_counter()
    bootstrap.auroc_interval(labels, scores, resamples=2000)
    assert time.perf_counter() - started < 3  # 0.05 s alone on a machine
