"""Metrics of scores: labels and scores of the same samples in, floats out.

``labels`` is ``[n]`` of 0 (right) and 1 (hallucinated); ``scores`` is float ``[n]``, finite, higher
meaning hallucinated. No metric chooses a threshold on the data it measures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import metrics as sklearn_metrics

from wdsbench.errors import DetectorError

# Bins of the calibration error; 15 is what the literature reports (Guo et al. 2017).
CALIBRATION_BINS = 15
# The true positive rate at which the false positive rate is read off.
RECALL = 0.95
# 1 - NEAREST is the largest float64 below 1.
NEAREST = 2.0**-53
#: Temperatures that can be fitted, both ends included.
LOWEST, HIGHEST = 0.01, 100.0
# Each halves the interval of log T, 9.2 wide: the last one is 1e-11 wide.
HALVINGS = 40


@dataclass(frozen=True)
class ReliabilityBins:
    """Predicted probability and observed share, in equal bins over [0, 1].

    Attributes:
        count: int64 ``[bins]`` samples; the last bin holds probability 1 too.
        probability: float64 ``[bins]`` mean probability; NaN in an empty bin.
        share: float64 ``[bins]`` share hallucinated; NaN in an empty bin.
    """

    count: NDArray[np.int64]
    probability: NDArray[np.float64]
    share: NDArray[np.float64]


def checked(labels: ArrayLike, scores: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return labels as bool ``[n]`` and scores as float64 ``[n]``.

    Raises:
        ValueError: Shapes differ, a label is neither 0 nor 1, or a score is not finite.
        DetectorError: Only one class is present.
    """
    truth, values = np.asarray(labels), np.asarray(scores, dtype=np.float64)
    if truth.ndim != 1 or truth.shape != values.shape:
        raise ValueError(f"labels {truth.shape} and scores {values.shape} are not both [n]")
    if not np.isin(truth, (0, 1)).all():
        raise ValueError("labels has values other than 0 and 1; omit unknown ones")
    if not np.isfinite(values).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(values))} scores are not finite")
    positives = int(np.count_nonzero(truth))
    if positives in (0, truth.size):
        raise DetectorError(
            f"{positives} hallucinated and {truth.size - positives} right samples: AUROC is not "
            "defined with one class only; pack more traces, or pack again with another --threshold"
        )
    return truth.astype(np.bool_), values


def both_classes(labels: ArrayLike) -> bool:
    """Return True if ``labels`` (``[n]`` of 0 and 1) has both classes, as AUROC needs."""
    return bool(np.unique(np.asarray(labels)).size == 2)


def auroc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Return the area under the ROC curve; ties count half."""
    return float(sklearn_metrics.roc_auc_score(*checked(labels, scores)))


def auprc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Return the area under the precision-recall curve as average precision (no interpolation)."""
    return float(sklearn_metrics.average_precision_score(*checked(labels, scores)))


def false_positive_rate(labels: ArrayLike, scores: ArrayLike, recall: float = RECALL) -> float:
    """Return the lowest false positive rate that finds at least ``recall`` of the positives."""
    false_rate, true_rate, _ = sklearn_metrics.roc_curve(
        *checked(labels, scores), drop_intermediate=False
    )
    return float(false_rate[true_rate >= recall].min())


def best_threshold(labels: ArrayLike, scores: ArrayLike) -> float:
    """Return the threshold with the best F1; to be called on validation data.

    It is the midpoint of two neighbouring scores, so it does not depend on one sample's last digit.
    Among equals the highest is returned.
    """
    truth, values = checked(labels, scores)
    order = np.argsort(-values, kind="stable")
    values, hits = values[order], np.cumsum(truth[order])
    # Samples of equal score are on the same side of the threshold.
    cuts = np.append(np.flatnonzero(np.diff(values)), values.size - 1)
    # F1 = 2 TP / (predicted positives + positives).
    f1 = 2 * hits[cuts] / (cuts + 1 + hits[-1])
    cut = int(cuts[np.argmax(f1)])
    if cut == values.size - 1:
        return float(values[-1])
    between = float(values[cut] / 2 + values[cut + 1] / 2)
    # The midpoint can round down to the lower neighbour; then use the upper one.
    return between if between > values[cut + 1] else float(values[cut])


def at_threshold(labels: ArrayLike, scores: ArrayLike, threshold: float) -> tuple[float, float]:
    """Return F1 (0 where nothing is found) and accuracy of ``score >= threshold``."""
    truth, values = checked(labels, scores)
    found = values >= threshold
    f1 = sklearn_metrics.f1_score(truth, found, zero_division=0)
    return float(f1), float(np.mean(found == truth))


def reliability_bins(
    labels: ArrayLike, probabilities: ArrayLike, bins: int = CALIBRATION_BINS
) -> ReliabilityBins:
    """Return the bins of a reliability diagram."""
    truth, values = _checked_probabilities(labels, probabilities)
    place = np.minimum((values * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    divisor = np.where(count > 0, count, np.nan)
    return ReliabilityBins(
        count=count,
        probability=np.bincount(place, weights=values, minlength=bins) / divisor,
        share=np.bincount(place, weights=truth, minlength=bins) / divisor,
    )


def calibration_error(
    labels: ArrayLike, probabilities: ArrayLike, bins: int = CALIBRATION_BINS
) -> float:
    """Return the expected calibration error of ``probabilities`` of being hallucinated.

    The mean over equal bins of [0, 1], weighted by their samples, of |share hallucinated - mean
    probability|. With few samples it is above 0 even for perfect probabilities.

    Source: Naeini et al. (2015), in its form for the positive class of two.
    """
    found = reliability_bins(labels, probabilities, bins)
    gaps = found.count * np.abs(found.share - found.probability)
    return float(np.nansum(gaps) / found.count.sum())


def brier_score(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Return the mean squared distance of ``probabilities`` from the labels: 0 is perfect."""
    return float(sklearn_metrics.brier_score_loss(*_checked_probabilities(labels, probabilities)))


def sigmoid(logits: ArrayLike) -> NDArray[np.float64]:
    """Return the probabilities of ``logits``, without overflow and with full relative precision."""
    values = np.asarray(logits, np.float64)
    small = np.exp(-np.abs(values))
    probabilities: NDArray[np.float64] = np.where(values < 0, small, 1) / (1 + small)
    return probabilities


def logits_of(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Return the logits of ``probabilities``: the inverse of `sigmoid`.

    Probabilities are clipped to [`NEAREST`, 1 - `NEAREST`] (logits +-36.7), symmetrically. Near 1
    the logit has the probability's rounding error: 1e-6 at 23, 0.3 at 36.

    Raises:
        ValueError: A probability lies outside [0, 1] or is not finite.
    """
    values = np.asarray(probabilities, dtype=np.float64)
    _require_probabilities(values)
    values = np.clip(values, NEAREST, 1 - NEAREST)
    logits: NDArray[np.float64] = np.log(values) - np.log1p(-values)
    return logits


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """Return the temperature in [`LOWEST`, `HIGHEST`] with the least negative log-likelihood.

    Logits are divided by a temperature: one above 1 makes probabilities less extreme, one below 1
    more. The order of samples and AUROC do not change.

    The lowest temperature is returned if 0 separates the classes, the highest if the logits are
    uninformative or reversed. If all logits are 0 the result is 1. Errors are those of `checked`.

    Source: Guo et al. (2017), On Calibration of Modern Neural Networks, section 4.2.
    """
    truth, values = checked(labels, logits)
    if not values.any():
        return 1.0
    margins = np.where(truth, values, -values)
    # The likelihood is convex in 1/T, so its slope changes sign once: bisection of log T is exact.
    low, high = np.log(LOWEST), np.log(HIGHEST)
    if _too_cold(margins, high):
        return HIGHEST
    if not _too_cold(margins, low):
        return LOWEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _too_cold(margins, middle):
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def scaled(probabilities: ArrayLike, temperature: float) -> NDArray[np.float64]:
    """Return ``probabilities`` after temperature scaling."""
    return sigmoid(logits_of(probabilities) / temperature)


def _too_cold(margins: NDArray[np.float64], log_temperature: float) -> bool:
    """Return True if the likelihood grows with the temperature; margins are positive if right.

    The derivative of ``mean(log(1 + exp(-m / T)))`` by ``1 / T`` is ``-mean(sigmoid(-m / T) * m)``.
    """
    weights = sigmoid(-margins * np.exp(-log_temperature))
    return bool(np.mean(weights * margins) < 0)


def _checked_probabilities(
    labels: ArrayLike, probabilities: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    truth, values = checked(labels, probabilities)
    _require_probabilities(values)
    return truth, values


def _require_probabilities(values: NDArray[np.float64]) -> None:
    outside = values[~((values >= 0) & (values <= 1))]
    if outside.size:
        raise ValueError(
            f"{outside.size} probabilities lie outside [0, 1], the first is {outside[0]:g}; "
            "pass sigmoid outputs"
        )
