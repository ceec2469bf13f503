"""Bootstrap intervals of AUROC and of differences between detectors on the same samples.

Resampling is stratified: hallucinated and right samples are drawn apart, each with replacement, so
that every resample has the classes' sizes of the data (AUROC is a two-sample statistic, and a
resample of one class has none). Intervals are percentile intervals. The same seed draws the same
samples for every detector: that is what makes differences paired.

Cost: ``O(resamples * n)`` after one sort; 2,000 resamples of 600 samples take some 20 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wdsbench.train.metrics import auroc, checked

# Counts of one chunk of resamples: 4 M int64 are 32 MB, whatever the number of samples.
CHUNK_COUNTS = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A figure with its bootstrap interval [low, high]."""

    value: float
    low: float
    high: float


def auroc_interval(
    labels: ArrayLike,
    scores: ArrayLike,
    *,
    seed: int = 0,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Return the AUROC of ``scores`` with its interval."""
    truth, values = checked(labels, scores)
    draws = _auroc_of_resamples(truth, [values], seed, resamples)[0]
    return _interval(auroc(truth, values), draws, confidence)


def paired_difference(
    labels: ArrayLike,
    scores: ArrayLike,
    other_scores: ArrayLike,
    *,
    seed: int = 0,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Return AUROC(scores) - AUROC(other_scores) with its interval over the same resamples."""
    truth, values = checked(labels, scores)
    _, others = checked(labels, other_scores)
    draws = _auroc_of_resamples(truth, [values, others], seed, resamples)
    return _interval(auroc(truth, values) - auroc(truth, others), draws[0] - draws[1], confidence)


def weighted_auroc(
    truth: NDArray[np.bool_], scores: NDArray[np.float64], counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the AUROC of R resamples, float64 ``[R]``.

    Args:
        truth: bool ``[n]``.
        scores: float64 ``[n]``.
        counts: int64 ``[R, n]``: how often each sample is in each resample.
    """
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    starts = np.append(0, np.flatnonzero(np.diff(ranked)) + 1)  # first sample of each tied group
    counts, positive = counts[:, order], truth[order]
    positives = np.add.reduceat(counts * positive, starts, axis=1)
    negatives = np.add.reduceat(counts * ~positive, starts, axis=1)
    # A positive beats the negatives of lower groups and half of those in its own: twice that is an
    # integer.
    twice_beaten = 2 * np.cumsum(negatives, axis=1) - negatives
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    result: NDArray[np.float64] = np.sum(positives * twice_beaten, axis=1) / (2.0 * pairs)
    return result


def _auroc_of_resamples(
    truth: NDArray[np.bool_], scores: list[NDArray[np.float64]], seed: int, resamples: int
) -> NDArray[np.float64]:
    """Return float64 ``[len(scores), resamples]``; a column is one resample, for all scores."""
    parts = [
        np.stack([weighted_auroc(truth, values, counts) for values in scores])
        for counts in _resample_counts(truth, seed, resamples)
    ]
    return np.concatenate(parts, axis=1)


def _resample_counts(
    truth: NDArray[np.bool_], seed: int, resamples: int
) -> Iterator[NDArray[np.int64]]:
    """Yield int64 ``[r, n]`` chunks: how often each sample is drawn, each class apart."""
    generator = np.random.default_rng(seed)
    classes = [np.flatnonzero(truth), np.flatnonzero(~truth)]
    rows_per_chunk = max(1, CHUNK_COUNTS // truth.size)
    for first in range(0, resamples, rows_per_chunk):
        rows = min(rows_per_chunk, resamples - first)
        row_start = np.arange(rows)[:, None] * truth.size
        drawn = [
            members[generator.integers(members.size, size=(rows, members.size))]
            for members in classes
        ]
        flat = np.concatenate([(row_start + samples).ravel() for samples in drawn])
        yield np.bincount(flat, minlength=rows * truth.size).reshape(rows, truth.size)


def _interval(value: float, draws: NDArray[np.float64], confidence: float) -> Interval:
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high))
