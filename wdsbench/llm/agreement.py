"""Agreement of two measures of the same answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """Agreement of two measures; None where a measure is the same for all answers.

    Attributes:
        first: One measure.
        second: The other.
        pearson: Correlation of the scores.
        spearman: Correlation of their ranks, ties at their mean.
        kappa: Cohen's kappa of the labels that the threshold makes of them (Cohen 1960).
    """

    first: str
    second: str
    pearson: float | None
    spearman: float | None
    kappa: float | None


def agreements(columns: Mapping[str, Column], threshold: float) -> list[Agreement]:
    """Return the agreement of every two columns.

    Args:
        columns: Name to float64 ``[n]``, all of the same answers.
        threshold: A score below it means hallucinated.
    """
    return [
        Agreement(
            first,
            second,
            correlation(columns[first], columns[second]),
            correlation(mean_ranks(columns[first]), mean_ranks(columns[second])),
            cohen_kappa(columns[first] < threshold, columns[second] < threshold),
        )
        for first, second in combinations(columns, 2)
    ]


def correlation(ours: Column, theirs: Column) -> float | None:
    """Return Pearson's r, None where one of the two does not vary."""
    if not ours.size or np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return None
    return float(np.clip(np.corrcoef(ours, theirs)[0, 1], -1, 1))


def mean_ranks(values: Column) -> Column:
    """Return the rank of every value from 0, equal values at the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Column = (ends - (counts + 1) / 2)[inverse]
    return ranks


def cohen_kappa(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float | None:
    """Return agreement beyond chance, None where chance alone agrees always."""
    if not ours.size:
        return None
    observed = float((ours == theirs).mean())
    a, b = float(ours.mean()), float(theirs.mean())
    chance = a * b + (1 - a) * (1 - b)
    return None if chance == 1 else (observed - chance) / (1 - chance)
