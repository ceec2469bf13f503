"""Bootstrap intervals of AUROC, of AUPRC and of differences in AUROC on the same samples.

Resampling is stratified: each class is resampled separately with replacement, so every resample has
the class sizes of the data. Intervals are percentile intervals. The same seed draws the same
samples for every detector, which makes differences paired.

Test samples are resampled: an interval describes the variation between test sets, not between
trainings of the same detector (for those see `wdsbench.train.means`).

Cost: ``O(resamples * n)`` per detector after one sort; on a busy core 2,000 resamples of 5,000
samples take 0.7 s. In simulations of 80 positives and 160 negatives, 95 % intervals contained the
true AUROC in 93 % of the cases, a true difference in AUROC in 95 %, the true AUPRC in 92 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wdsbench.train.metrics import auprc, auroc, checked

# Counts per chunk of resamples: 4 M int64 are 32 MB.
CHUNK_COUNTS = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A figure with its bootstrap interval [low, high]."""

    value: float
    low: float
    high: float

    @property
    def bounds(self) -> tuple[float, float]:
        """Both ends."""
        return self.low, self.high


@dataclass(frozen=True)
class Comparison:
    """Detectors on the same resamples; ``draws``: float64 ``[resamples]``, each one's AUROC."""

    auroc: dict[str, Interval]
    auprc: dict[str, Interval]
    draws: dict[str, NDArray[np.float64]]
    confidence: float

    def difference(self, name: str, other: str) -> Interval:
        """Return AUROC(name) - AUROC(other) with its paired interval."""
        return _interval(
            self.auroc[name].value - self.auroc[other].value,
            self.draws[name] - self.draws[other],
            self.confidence,
        )


def compare(
    labels: ArrayLike,
    scores: Mapping[str, ArrayLike],
    *,
    seed: int = 0,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Comparison:
    """Return every detector's AUROC and AUPRC with intervals, all over the same resamples.

    ``labels``: ``[n]`` of 0 and 1. ``scores``: by name ``[n]``, or ``[trainings, n]`` of a detector
    trained several times: its figures then are means over the trainings, in every resample too.

    Raises:
        DetectorError: Only one class is present.
    """
    truth = np.empty(0, np.bool_)
    rows: dict[str, list[NDArray[np.float64]]] = {}
    for name, given in scores.items():
        rows[name] = []
        for row in np.atleast_2d(np.asarray(given, dtype=np.float64)):
            truth, values = checked(labels, row)
            rows[name].append(values)
    parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in rows}
    if rows:
        for counts in _resample_counts(truth, seed, resamples):
            for name, own in rows.items():
                parts[name].append(np.mean([_figures(truth, row, counts) for row in own], axis=0))
    draws = {name: np.concatenate(part, axis=1) for name, part in parts.items()}

    def intervals(figure: int) -> dict[str, Interval]:
        metric = (auroc, auprc)[figure]
        values = {name: np.mean([metric(truth, row) for row in own]) for name, own in rows.items()}
        return {
            name: _interval(float(value), draws[name][figure], confidence)
            for name, value in values.items()
        }

    areas = {name: both[0] for name, both in draws.items()}
    return Comparison(intervals(0), intervals(1), areas, confidence)


def auroc_interval(
    labels: ArrayLike,
    scores: ArrayLike,
    *,
    seed: int = 0,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Return the AUROC of ``scores`` ``[n]`` with its interval."""
    found = compare(labels, {"": scores}, seed=seed, resamples=resamples, confidence=confidence)
    return found.auroc[""]


def _figures(
    truth: NDArray[np.bool_], scores: NDArray[np.float64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return AUROC and average precision of R resamples, float64 ``[R]`` each.

    ``counts``: int64 ``[R, n]``: how often each sample is in each resample.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    starts = np.append(0, np.flatnonzero(np.diff(ranked)) + 1)  # first sample of each tied group
    counts, positive = counts[:, order], truth[order]
    positives = np.add.reduceat(counts * positive, starts, axis=1)
    negatives = np.add.reduceat(counts, starts, axis=1) - positives
    hits, alarms = np.cumsum(positives, axis=1), np.cumsum(negatives, axis=1)
    all_hits, all_alarms = hits[:, -1:], alarms[:, -1:]
    # A positive beats the negatives of lower groups and half of those in its own: twice that is an
    # integer.
    twice_beaten = 2 * (all_alarms - alarms) + negatives
    area: NDArray[np.float64] = np.sum(positives * twice_beaten, axis=1) / (
        2.0 * (all_hits * all_alarms)[:, 0]
    )
    # A group that is not in a resample at all, nor any before it, adds no positives: 0 / 1.
    precision = hits / np.maximum(hits + alarms, 1)
    average: NDArray[np.float64] = np.sum(positives * precision, axis=1) / all_hits[:, 0]
    return area, average


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
