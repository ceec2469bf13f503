"""Comparison with the controls, and what a detector adds to the text of the answer.

A detector that ranks answers well may only have learnt which texts are wrong. It is therefore
*combined* with `TEXT_CONTROL`: a logistic regression on both scores, fitted on validation. The
AUROC of the combination minus that of the text control alone, on the same test samples and
resamples, is what the detector adds.

Verdicts:

    adds    the interval of that difference is above 0
    leak    it is not, and the interval of the text control's own AUROC is above 0.5: the text gives
            the labels away
    none    neither
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression

from wdsbench.detect.registry import CONTROLS, TEXT_CONTROL
from wdsbench.train.bootstrap import Comparison
from wdsbench.train.results import Difference, verdict_of

_Scores = NDArray[np.float64]


def combined_name(name: str) -> str:
    """Return the name of the scores of the text control and a detector combined."""
    return f"{TEXT_CONTROL}+{name}"


def combined_scores(
    labels: ArrayLike, val: tuple[_Scores, _Scores], test: tuple[_Scores, _Scores]
) -> _Scores:
    """Return the logits of a logistic regression on two scores, fitted on ``val``, for ``test``.

    ``labels`` are those of the validation samples, of 0 and 1. Scores are limited to three times
    the range of 98 % of the validation samples: a log-probability may be huge.
    """
    columns = [_standardised(*scores) for scores in zip(val, test, strict=True)]
    inputs, outputs = (np.stack(part, axis=1) for part in zip(*columns, strict=True))
    model = LogisticRegression().fit(inputs, np.asarray(labels))
    logits: _Scores = model.decision_function(outputs)
    return logits


def control_figures(
    comparison: Comparison | None, name: str, val_auroc: Mapping[str, float | None]
) -> dict[str, Any]:
    """Return the fields of `DetectorResult` that compare ``name`` with the controls.

    The best control is the one with the highest validation AUROC. Controls have no verdict.
    """
    areas = {control: val_auroc[control] or 0.0 for control in CONTROLS if control in val_auroc}
    best = max(areas, key=areas.__getitem__, default=None)
    adds = None
    if comparison is not None and combined_name(name) in comparison.auroc:
        found = comparison.difference(combined_name(name), TEXT_CONTROL)
        adds = Difference(TEXT_CONTROL, found.value, found.bounds)
    judged = comparison is not None and adds is not None and name not in CONTROLS
    return {
        "difference_to_control": difference(comparison, name, best),
        "adds_to_text": adds,
        "verdict": verdict_of(adds, comparison.auroc[TEXT_CONTROL].bounds)
        if judged and comparison is not None
        else None,
    }


def difference(comparison: Comparison | None, name: str, other: str | None) -> Difference | None:
    """Return the AUROC of ``name`` minus that of ``other``; None if they are the same, or ``other``
    was not run.
    """
    if comparison is None or other is None or other == name or other not in comparison.auroc:
        return None
    found = comparison.difference(name, other)
    return Difference(other, found.value, found.bounds)


def _standardised(val: _Scores, test: _Scores) -> tuple[_Scores, _Scores]:
    """Return both with mean 0 and deviation 1 of ``val``, without extremes."""
    low, high = np.quantile(val, (0.01, 0.99))
    limits = (2 * low - high, 2 * high - low)
    val, test = np.clip(val, *limits), np.clip(test, *limits)
    deviation = float(val.std()) or 1.0
    return (val - val.mean()) / deviation, (test - val.mean()) / deviation
