"""Figures of outcomes against scikit-learn and by hand; choices are made on validation."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score
from torch import nn

from wdsbench.detect.registry import detector_spec
from wdsbench.errors import DetectorError
from wdsbench.train import metrics
from wdsbench.train.config import TrainConfig
from wdsbench.train.examples import Examples
from wdsbench.train.fitted import FittedDetector
from wdsbench.train.measure import Outcome, measure, reliability_curves
from wdsbench.train.metrics import scaled

CONFIG = TrainConfig(resamples=300, seed=2)


def make_examples(labels: NDArray[np.float64]) -> Examples:
    keys = [f"k{number}" for number in range(labels.size)]
    return Examples(keys, keys, labels)


def make_split(seed: int, count: int = 400) -> tuple[Examples, NDArray[np.float64]]:
    """Return samples, every tenth unlabelled, and the logits their labels were drawn with."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, size=count)
    labels = (generator.random(count) < metrics.sigmoid(logits)).astype(np.float64)
    labels[::10] = np.nan
    return make_examples(labels), logits


VAL, VAL_LOGITS = make_split(seed=0)
TEST, TEST_LOGITS = make_split(seed=1)
EXAMPLES = {"val": VAL, "test": TEST}


def trained(factor: float = 1.0, noise: float = 0.0, name: str = "lstm", **changes: Any) -> Outcome:
    """Return the outcome of a detector with 3 weights and bias whose logits are those the labels
    were drawn with, ``factor`` times, with noise.
    """
    generator = np.random.default_rng(5)
    val, test = (
        metrics.sigmoid(factor * logits + noise * generator.normal(size=logits.size))
        for logits in (VAL_LOGITS, TEST_LOGITS)
    )
    records = [SimpleNamespace(seconds=seconds) for seconds in (1.0, 2.0, 3.0)]
    fit: Any = SimpleNamespace(records=records, best_epoch=1, seconds_per_epoch=2.0)
    fitted = FittedDetector(detector_spec(name), module=nn.Linear(3, 1), threshold=0.5)
    return replace(Outcome(fitted, val, test, fit), **changes)


def closed_form(name: str = "logprob_mean") -> Outcome:
    fitted = FittedDetector(detector_spec(name), sign=-1, threshold=-0.5)
    return Outcome(fitted, -np.abs(VAL_LOGITS), -np.abs(TEST_LOGITS), None)


def test_figures_are_those_of_the_labelled_test_samples() -> None:
    outcome = trained(factor=3, name="probe_mlp")
    result = measure({"lstm": outcome}, EXAMPLES, CONFIG)["lstm"]
    labels, scores = TEST.known_labels, outcome.test_scores[TEST.known]
    assert result.auroc == roc_auc_score(labels, scores)
    assert result.auprc == average_precision_score(labels, scores)
    assert result.auprc_interval is not None
    assert result.auprc_interval[0] < result.auprc < result.auprc_interval[1]
    assert result.auroc_interval[0] < result.auroc < result.auroc_interval[1]
    assert result.brier == pytest.approx(brier_score_loss(labels, scores))
    assert result.accuracy == np.mean((scores >= 0.5) == labels)
    assert (result.n_pos + result.n_neg, result.n_unlabelled) == (360, 40)
    assert result.n_pos == labels.sum()
    assert (result.parameters, result.epochs, result.best_epoch) == (4, 3, 1)
    assert result.seconds_per_epoch == 2.0
    assert (result.sign, result.threshold) == (1, 0.5)
    assert result.chosen == {"layer": 0, "token": "last_answer"}
    assert result.difference_to_best is None


def test_temperature_undoes_the_factor_and_the_calibration_error_falls() -> None:
    result = measure({"lstm": trained(factor=4)}, EXAMPLES, CONFIG)["lstm"]
    plain = measure({"lstm": trained(factor=1)}, EXAMPLES, CONFIG)["lstm"]
    assert result.temperature is not None
    assert plain.temperature is not None
    assert result.temperature == pytest.approx(4 * plain.temperature, rel=1e-6)
    assert plain.temperature == pytest.approx(1, abs=0.2)
    assert result.ece is not None
    assert result.ece_scaled is not None
    assert result.ece_scaled < 0.6 * result.ece
    assert result.ece_scaled == pytest.approx(plain.ece_scaled)
    assert result.brier is not None
    assert result.brier_scaled is not None
    assert result.brier_scaled < result.brier


def test_temperature_is_fitted_on_validation_alone() -> None:
    outcome = trained(factor=4)
    one = measure({"lstm": outcome}, EXAMPLES, CONFIG)["lstm"]
    # Test labels turned round: what was fitted stays, what was measured does not.
    turned = {"val": VAL, "test": make_examples(1 - TEST.labels)}
    other = measure({"lstm": outcome}, turned, CONFIG)["lstm"]
    assert other.temperature == one.temperature
    assert other.val_auroc == one.val_auroc
    assert other.auroc == pytest.approx(1 - one.auroc)


def test_temperature_of_the_detector_is_the_one_that_is_measured() -> None:
    outcome = trained(factor=4)
    own = replace(outcome, fitted=replace(outcome.fitted, temperature=2.0))
    result = measure({"lstm": own}, EXAMPLES, CONFIG)["lstm"]
    assert result.temperature == 2.0
    after = scaled(own.test_scores[TEST.known], 2.0)
    assert result.ece_scaled == metrics.calibration_error(TEST.known_labels, after)


def test_closed_forms_have_no_calibration() -> None:
    result = measure({"logprob_mean": closed_form()}, EXAMPLES, CONFIG)["logprob_mean"]
    for name in ("ece", "ece_scaled", "brier", "brier_scaled", "temperature"):
        assert getattr(result, name) is None
    assert (result.epochs, result.best_epoch, result.seconds_per_epoch) == (None, None, None)
    assert (result.parameters, result.sign) == (0, -1)


def test_best_is_the_one_on_validation() -> None:
    # gnn sees through the test split, and nothing of validation.
    gnn = trained(val_scores=metrics.sigmoid(np.roll(VAL_LOGITS, 1)))
    outcomes = {"gnn": gnn, "lstm": trained(noise=1), "logprob_mean": closed_form()}
    results = measure(outcomes, EXAMPLES, CONFIG)
    assert results["gnn"].auroc > results["lstm"].auroc
    assert results["lstm"].difference_to_best is None
    for name in ("gnn", "logprob_mean"):
        difference = results[name].difference_to_best
        assert difference is not None
        assert difference.to == "lstm"
        assert difference.difference == pytest.approx(results[name].auroc - results["lstm"].auroc)
        assert difference.interval[0] < difference.difference < difference.interval[1]
    assert results["logprob_mean"].difference_to_logprob_mean is None
    assert results["lstm"].difference_to_logprob_mean is not None


def test_identical_detectors_differ_by_exactly_nothing() -> None:
    results = measure({"lstm": trained(), "gnn": trained(name="gnn")}, EXAMPLES, CONFIG)
    difference = results["gnn"].difference_to_best
    assert difference is not None
    assert (difference.to, difference.difference, difference.interval) == ("lstm", 0, (0, 0))


def test_figures_do_not_depend_on_the_others() -> None:
    alone = measure({"lstm": trained()}, EXAMPLES, CONFIG)["lstm"]
    outcomes = {"logprob_mean": closed_form(), "lstm": trained()}
    beside = measure(outcomes, EXAMPLES, CONFIG)["lstm"]
    assert replace(beside, difference_to_logprob_mean=None) == alone


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_is_refused(split: str, label: float) -> None:
    labels = np.where(EXAMPLES[split].known, label, np.nan)
    examples = {**EXAMPLES, split: make_examples(labels)}
    with pytest.raises(DetectorError, match="AUROC is not defined with one class only"):
        measure({"lstm": trained()}, examples, CONFIG)


def test_no_outcome_gives_no_result() -> None:
    assert measure({}, EXAMPLES, CONFIG) == {}


def test_reliability_curves_are_those_of_the_figures() -> None:
    outcomes = {"logprob_mean": closed_form(), "lstm": trained(factor=4)}
    results = measure(outcomes, EXAMPLES, CONFIG)
    (curve,) = reliability_curves(outcomes, results, EXAMPLES)
    assert curve.name == "lstm"
    assert (curve.ece, curve.ece_scaled) == (results["lstm"].ece, results["lstm"].ece_scaled)
    assert curve.before.count.sum() == curve.after.count.sum() == 360
    after = scaled(outcomes["lstm"].test_scores[TEST.known], curve.temperature)
    expected = metrics.reliability_bins(TEST.known_labels, after)
    np.testing.assert_array_equal(curve.after.share, expected.share)
