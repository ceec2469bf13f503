"""Temperature scaling of probabilities.

Logits are divided by a temperature T > 0: T > 1 makes probabilities less extreme, T < 1 more. The
order of samples and AUROC do not change. T minimises the negative log-likelihood on validation.

Source: Guo et al. (2017), On Calibration of Modern Neural Networks, section 4.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wdsbench.train.metrics import checked, logits_of, sigmoid

#: Temperatures that can be fitted, both ends included.
LOWEST, HIGHEST = 0.01, 100.0
# Each halves the interval of log T, 9.2 wide: the last one is 1e-11 wide.
HALVINGS = 40


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """Return the temperature in [`LOWEST`, `HIGHEST`] with the least negative log-likelihood.

    The lowest temperature is returned if 0 separates the classes, the highest if the logits are
    uninformative or reversed. If all logits are 0 the result is 1.

    Args:
        logits: float ``[n]``, more meaning hallucinated.
        labels: ``[n]`` of 0 and 1.

    Raises:
        ValueError: Shapes differ, a label is neither 0 nor 1, or a logit is not finite.
        DetectorError: Only one class is present.
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
