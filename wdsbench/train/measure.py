"""Figures of the outcomes of detectors, measured on the labelled test samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.detect.registry import TEXT_CONTROL
from wdsbench.train import metrics
from wdsbench.train.bootstrap import Comparison, compare
from wdsbench.train.config import TrainConfig
from wdsbench.train.controls import combined_name, combined_scores, control_figures, difference
from wdsbench.train.examples import Examples
from wdsbench.train.fitted import FittedDetector
from wdsbench.train.log import FitResult
from wdsbench.train.plots import ReliabilityCurve
from wdsbench.train.reconstruction import ValidationErrors
from wdsbench.train.results import (
    PERCENTILES,
    DetectorResult,
    ErrorFigures,
    GroupFigures,
    best_detector,
)

BASELINE = "logprob_mean"


@dataclass(frozen=True)
class Outcome:
    """One detector's fit and its scores.

    Attributes:
        val_scores: float64 ``[n]`` of the validation samples; those of samples without a label may
            be NaN.
        test_scores: float64 ``[n]`` of all test samples.
        fit: Records of the training; None if nothing was trained.
        errors: Validation errors of a detector that reconstructs.
        combined: float64 ``[n]``: test scores of the text control and this detector combined; None
            without the text control, and for itself.
    """

    fitted: FittedDetector
    val_scores: NDArray[np.float64]
    test_scores: NDArray[np.float64]
    fit: FitResult | None
    errors: ValidationErrors | None = None
    combined: NDArray[np.float64] | None = None


def with_text(outcomes: dict[str, Outcome], examples: dict[str, Examples]) -> dict[str, Outcome]:
    """Return the outcomes with their ``combined`` scores, if the text control was run."""
    text, known = outcomes.get(TEXT_CONTROL), examples["val"].known
    if text is None:
        return outcomes
    val_text, test_text = _additive(text)
    found = {}
    for name, outcome in outcomes.items():
        combined = None
        if outcome is not text:
            val, test = _additive(outcome)
            labels = examples["val"].known_labels
            combined = combined_scores(labels, (val_text[known], val[known]), (test_text, test))
        found[name] = replace(outcome, combined=combined)
    return found


def _additive(outcome: Outcome) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores of validation and test, logits in place of probabilities."""
    scores = outcome.val_scores, outcome.test_scores
    if not outcome.fitted.calibrated:
        return scores
    return metrics.logits_of(scores[0]), metrics.logits_of(scores[1])


def measure(
    outcomes: dict[str, Outcome], examples: dict[str, Examples], config: TrainConfig
) -> dict[str, DetectorResult]:
    """Return the figures of every detector on the test samples: those that need labels on the
    labelled ones, None where a split lacks a class (`read_splits` refuses that for traces).
    """
    val, test = examples["val"], examples["test"]
    counts = test.counts()
    comparison = None
    if metrics.both_classes(test.known_labels):
        comparison = compare(
            test.known_labels,
            {
                **{name: outcome.test_scores[test.known] for name, outcome in outcomes.items()},
                **{
                    combined_name(name): outcome.combined[test.known]
                    for name, outcome in outcomes.items()
                    if outcome.combined is not None
                },
            },
            seed=config.seed,
            resamples=config.resamples,
            confidence=config.confidence,
        )
    validated = metrics.both_classes(val.known_labels)
    val_auroc = {
        name: metrics.auroc(val.known_labels, outcome.val_scores[val.known]) if validated else None
        for name, outcome in outcomes.items()
    }
    best = best_detector(val_auroc)
    results: dict[str, DetectorResult] = {}
    for name, outcome in outcomes.items():
        fitted, fit = outcome.fitted, outcome.fit
        assert fitted.threshold is not None
        results[name] = DetectorResult(
            **_labelled_figures(name, outcome, test, comparison),
            threshold=fitted.threshold,
            n_pos=counts["n_pos"],
            n_neg=counts["n_neg"],
            n_unlabelled=counts["n_unlabelled"],
            val_auroc=val_auroc[name],
            parameters=fitted.parameters,
            epochs=len(fit.records) if fit else None,
            best_epoch=fit.best_epoch if fit else None,
            seconds_per_epoch=fit.seconds_per_epoch if fit else None,
            sign=fitted.sign,
            chosen=fitted.chosen,
            errors=_error_figures(outcome),
            groups=_group_figures(outcome, test),
            difference_to_logprob_mean=difference(comparison, name, BASELINE),
            difference_to_best=difference(comparison, name, best),
            **control_figures(comparison, name, val_auroc),
            **_calibration(outcome, examples),
        )
    return results


def _labelled_figures(
    name: str, outcome: Outcome, test: Examples, comparison: Comparison | None
) -> dict[str, Any]:
    """Return the fields of `DetectorResult` that need labels; None without a comparison."""
    names = ("auroc", "auroc_interval", "auprc", "auprc_interval", "f1", "accuracy", "fpr95")
    if comparison is None:
        return dict.fromkeys(names)
    labels, scores = test.known_labels, outcome.test_scores[test.known]
    least = outcome.fitted.least
    assert least is not None
    f1, accuracy = metrics.at_threshold(labels, scores, least)
    area, precision = comparison.auroc[name], comparison.auprc[name]
    fpr95 = metrics.false_positive_rate(labels, scores)
    values = (area.value, area.bounds, precision.value, precision.bounds, f1, accuracy, fpr95)
    return dict(zip(names, values, strict=True))


def _error_figures(outcome: Outcome) -> ErrorFigures | None:
    least = outcome.fitted.least
    if outcome.errors is None or least is None:
        return None
    scores = outcome.test_scores
    found = np.percentile(scores, PERCENTILES)
    return ErrorFigures(
        validation_mean=outcome.errors.mean,
        quantiles={str(p): float(value) for p, value in zip(PERCENTILES, found, strict=True)},
        above_threshold=float(np.mean(scores >= least)),
        exact=outcome.errors.percentiles.exact,
    )


def _group_figures(outcome: Outcome, test: Examples) -> GroupFigures | None:
    """Return the AUROC of every group with both classes; None if there is none."""
    if test.groups is None:
        return None
    names = np.array(test.groups)
    areas, one_class = {}, 0
    for name in sorted(set(test.groups) - {""}):
        own = test.known & (names == name)
        if metrics.both_classes(test.labels[own]):
            areas[name] = metrics.auroc(test.labels[own], outcome.test_scores[own])
        else:
            one_class += 1
    return GroupFigures(float(np.mean(list(areas.values()))), areas, one_class) if areas else None


def _calibration(outcome: Outcome, examples: dict[str, Examples]) -> dict[str, Any]:
    """Return the fields of `DetectorResult` that describe the calibration of probabilities on test;
    none if scores are not probabilities. A temperature is fitted on validation if there is none.
    """
    if not outcome.fitted.calibrated:
        return {}
    val, test = examples["val"], examples["test"]
    temperature = outcome.fitted.temperature
    if temperature is None:
        logits = metrics.logits_of(outcome.val_scores[val.known])
        temperature = metrics.fit_temperature(logits, val.known_labels)
    labels, before = test.known_labels, outcome.test_scores[test.known]
    after = metrics.scaled(before, temperature)
    return {
        "temperature": temperature,
        "ece": metrics.calibration_error(labels, before),
        "ece_scaled": metrics.calibration_error(labels, after),
        "brier": metrics.brier_score(labels, before),
        "brier_scaled": metrics.brier_score(labels, after),
    }


def reliability_curves(
    outcomes: dict[str, Outcome], results: dict[str, DetectorResult], examples: dict[str, Examples]
) -> list[ReliabilityCurve]:
    """Return the curves of all detectors that return probabilities, for `plot_reliability`."""
    test = examples["test"]
    curves: list[ReliabilityCurve] = []
    for name, outcome in outcomes.items():
        result = results[name]
        if result.temperature is None or result.ece is None or result.ece_scaled is None:
            continue
        before = outcome.test_scores[test.known]
        after = metrics.scaled(before, result.temperature)
        curves.append(
            ReliabilityCurve(
                name=name,
                before=metrics.reliability_bins(test.known_labels, before),
                after=metrics.reliability_bins(test.known_labels, after),
                ece=result.ece,
                ece_scaled=result.ece_scaled,
                temperature=result.temperature,
            )
        )
    return curves
