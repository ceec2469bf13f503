"""Outcomes of detectors to figures: everything is measured on the labelled test samples, nothing is
chosen there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.train import metrics
from wdsbench.train.bootstrap import auroc_interval, paired_difference
from wdsbench.train.config import TrainConfig
from wdsbench.train.fitted import FittedDetector
from wdsbench.train.loop import FitResult
from wdsbench.train.results import DetectorResult, Difference
from wdsbench.train.source import Examples

BASELINE = "logprob_mean"


@dataclass(frozen=True)
class Outcome:
    """One detector's fit and its scores.

    Attributes:
        fitted: The detector.
        val_scores: float64 ``[n]`` of all validation samples, labelled or not.
        test_scores: The same of the test samples.
        fit: How it was trained; None where nothing was.
    """

    fitted: FittedDetector
    val_scores: NDArray[np.float64]
    test_scores: NDArray[np.float64]
    fit: FitResult | None


def measure(
    outcomes: dict[str, Outcome], examples: dict[str, Examples], config: TrainConfig
) -> dict[str, DetectorResult]:
    """Return the figures of every detector on the labelled test samples."""
    val, test = examples["val"], examples["test"]
    labels = test.known_labels
    options: dict[str, Any] = {
        "seed": config.seed,
        "resamples": config.resamples,
        "confidence": config.confidence,
    }
    val_auroc = {
        name: metrics.auroc(val.known_labels, outcome.val_scores[val.known])
        for name, outcome in outcomes.items()
    }
    best = max(val_auroc, key=val_auroc.__getitem__, default=None)

    def difference(name: str, other: str | None) -> Difference | None:
        if other is None or other == name or other not in outcomes:
            return None
        scores, others = (outcomes[n].test_scores[test.known] for n in (name, other))
        found = paired_difference(labels, scores, others, **options)
        return Difference(other, found.value, (found.low, found.high))

    results: dict[str, DetectorResult] = {}
    for name, outcome in outcomes.items():
        scores, fitted = outcome.test_scores[test.known], outcome.fitted
        assert fitted.threshold is not None
        interval = auroc_interval(labels, scores, **options)
        decided = metrics.at_threshold(labels, scores, fitted.threshold)
        counts = test.counts()
        results[name] = DetectorResult(
            auroc=interval.value,
            auroc_interval=(interval.low, interval.high),
            auprc=metrics.auprc(labels, scores),
            f1=decided.f1,
            accuracy=decided.accuracy,
            threshold=fitted.threshold,
            fpr95=metrics.false_positive_rate(labels, scores),
            ece=metrics.calibration_error(labels, scores) if fitted.calibrated else None,
            n_pos=counts["n_pos"],
            n_neg=counts["n_neg"],
            val_auroc=val_auroc[name],
            parameters=fitted.parameters,
            epochs=len(outcome.fit.records) if outcome.fit else None,
            seconds_per_epoch=outcome.fit.seconds_per_epoch if outcome.fit else None,
            difference_to_logprob_mean=difference(name, BASELINE),
            difference_to_best=difference(name, best),
        )
    return results
