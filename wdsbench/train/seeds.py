"""The same detectors trained several times, with a seed each: how much of a figure is luck.

    seed-0000/ ...   a whole run each (see `wdsbench.train.run`), named by its seed
    results.json     per detector the mean over seeds of each figure, and its spread
    report.md        the tables
    roc.png          mean ROC curves

Two things move a figure, and they are kept apart. Another training moves it by the *spread*:
standard deviation, lowest and highest over the seeds, on the same test samples. Other test samples
move it by the *interval*: that of the mean over seeds, every resample measured with the scores of
every seed and averaged. It is not the interval of averaged scores: those belong to an ensemble, a
detector that nobody trained. The detector that the others are compared with has the highest
validation AUROC in the mean.

A seed decides order, weights and dropout. What is not trained has no spread. A detector that failed
with one seed has no mean: it is named with the reason, for a mean over those that went well would
be a better one than was earned.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import DetectorError
from wdsbench.progress import Progress, T, no_progress
from wdsbench.train.bootstrap import Comparison, compare
from wdsbench.train.config import TrainConfig
from wdsbench.train.device import choose_device
from wdsbench.train.measure import BASELINE, bounds, difference
from wdsbench.train.plots import RocCurve, plot_roc
from wdsbench.train.ranks import Ranks, open_ranks, rank_device
from wdsbench.train.report import write_markdown
from wdsbench.train.results import (
    RESULTS_NAME,
    DetectorResult,
    Results,
    SeedSpread,
    Spread,
    load_results,
    write_results,
)
from wdsbench.train.run import REPORT_NAME, ROC_NAME, SCORES_NAME, result_files
from wdsbench.train.run import train as train_once

#: Figures that are averaged; those of them that are None are None in the mean.
AVERAGED = (
    "auroc",
    "auprc",
    "f1",
    "accuracy",
    "threshold",
    "fpr95",
    "ece",
    "ece_scaled",
    "brier",
    "brier_scaled",
    "temperature",
    "val_auroc",
    "epochs",
    "best_epoch",
    "seconds_per_epoch",
)


class Train(Protocol):
    """One run: fits and measures, and leaves ``results.json`` and ``scores.csv`` in ``out``."""

    def __call__(
        self,
        shards: str | Path,
        detectors: Sequence[str],
        out: str | Path,
        config: TrainConfig,
        progress: Progress,
    ) -> Results: ...


@dataclass(frozen=True)
class _Scores:
    """The content of a ``scores.csv``, in its order.

    Attributes:
        labels: By member key; None unknown.
        scores: By detector and member key.
    """

    labels: dict[str, float | None]
    scores: dict[str, dict[str, float]]


def seed_folder(out: str | Path, seed: int) -> Path:
    """Return the folder of one seed's run."""
    return Path(out) / f"seed-{seed:04d}"


def train_seeds(
    shards: str | Path,
    detectors: Sequence[str],
    out: str | Path,
    config: TrainConfig | None = None,
    seeds: int = 5,
    *,
    train: Train = train_once,
    progress: Progress = no_progress,
) -> Results:
    """Train ``detectors`` with the seeds ``config.seed``, ``config.seed + 1``, ... and return the
    means of their figures, each with its spread.

    Under `torchrun` every rank calls this alike; all return the same, the first one writes.

    Args:
        shards: What the loader opens.
        detectors: Names of the registry.
        out: Folder, made if need be; the figures of an earlier run in it are replaced, runs of
            other seeds stay.
        config: Settings; ``config.seed`` is the first seed, and that of the resamples.
        seeds: How many.
        train: One run.
        progress: Draws bars.

    Raises:
        ValueError: ``seeds`` is less than 1, the last seed is too large, or what `train` refuses.
        DetectorError: What `train` refuses, or no detector at all came through with every seed
            (``results.json`` then says why).
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it must be at least 1")
    config = config or TrainConfig()
    settings = [dataclasses.replace(config, seed=config.seed + step) for step in range(seeds)]
    folder = Path(out)
    device = choose_device(rank_device(config.device))
    with open_ranks(device, config.rank_timeout_seconds) as ranks:
        if ranks.is_first:
            # Figures and scores of one run would contradict the means beside them.
            for path in result_files(folder):
                if path.is_file():
                    path.unlink()
        runs: dict[int, Results] = {}
        for step, setting in enumerate(settings):
            named = _named(progress, f"seed {setting.seed} ({step + 1} of {seeds}): ")
            place = seed_folder(folder, setting.seed)
            runs[setting.seed] = _run(train, shards, detectors, place, setting, named, ranks)
        results, *_ = ranks.together(
            lambda: _write_means(runs, folder, config) if ranks.is_first else None
        )
    assert results is not None
    if not results.detectors:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in results.not_available.items())
        raise DetectorError(f"no detector could be run with every seed: {reasons}")
    return results


def _named(progress: Progress, prefix: str) -> Progress:
    """Return ``progress`` with ``prefix`` before the name of every bar."""

    def prefixed(items: Iterable[T], total: int | None, what: str) -> Iterable[T]:
        return progress(items, total, prefix + what)

    return prefixed


def _run(
    train: Train,
    shards: str | Path,
    detectors: Sequence[str],
    folder: Path,
    config: TrainConfig,
    progress: Progress,
    ranks: Ranks,
) -> Results:
    """Return one seed's results; a run in which no detector came through is one of reasons."""
    before = _version(folder / RESULTS_NAME)
    try:
        return train(shards, detectors, folder, config, progress)
    except DetectorError as error:
        failure = error  # raised on all ranks alike

    def reasons() -> Results | None:
        if not ranks.is_first:
            return None
        # Written before the error: reasons by name. Nothing written: the data were refused, and
        # would be with every seed.
        if _version(folder / RESULTS_NAME) in (None, before):
            raise failure
        return load_results(folder)

    found, *_ = ranks.together(reasons)
    assert found is not None
    return found


def _version(path: Path) -> tuple[int, int] | None:
    """Return what changes when ``path`` is written anew; None where it is not."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _write_means(runs: dict[int, Results], folder: Path, config: TrainConfig) -> Results:
    first = next(iter(runs.values()))
    asked = list(dict.fromkeys(name for run in runs.values() for name in _names(run)))
    whole = [name for name in asked if all(name in run.detectors for run in runs.values())]
    labels, scores = _joined_scores(runs, folder, whole)
    comparison = compare(
        labels,
        scores,
        seed=config.seed,
        resamples=config.resamples,
        confidence=config.confidence,
    )
    means = {name: _mean([run.detectors[name] for run in runs.values()]) for name in whole}
    best = max(means, key=lambda name: means[name].val_auroc, default=None)
    results = Results(
        detectors={
            name: _with_intervals(result, name, comparison, best) for name, result in means.items()
        },
        not_available={name: _failures(name, runs, folder) for name in asked if name not in whole},
        dataset=first.dataset,
        config={**first.config, "seed": config.seed, "seeds": list(runs)},
    )
    write_markdown(results, folder / REPORT_NAME)
    if whole:
        plot_roc(
            folder / ROC_NAME,
            labels,
            [
                RocCurve(name, scores[name], result.auroc, result.auroc_interval)
                for name, result in results.detectors.items()
            ],
        )
    write_results(results, folder / RESULTS_NAME)
    return results


def _names(results: Results) -> list[str]:
    """Return the detectors of a run, with figures or without, in the order they were asked for."""
    found = [*results.detectors, *results.not_available]
    asked = [name for name in results.config.get("detectors", []) if name in found]
    return [*asked, *found]


def _failures(name: str, runs: dict[int, Results], folder: Path) -> str:
    """Return why ``name`` has no mean."""
    reasons = {
        seed: run.not_available.get(name, "neither figures nor a reason")
        for seed, run in runs.items()
        if name not in run.detectors
    }
    if len(reasons) == len(runs) and len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    words = "; ".join(f"seed {seed}: {reason}" for seed, reason in reasons.items())
    text = f"failed with {len(reasons)} of {len(runs)} seeds: {words}"
    others = [seed_folder(folder, seed).name for seed in runs if seed not in reasons]
    if others:
        text += f"; no mean is given, the figures of the others are in {', '.join(others)}"
    return text


def _mean(found: list[DetectorResult]) -> DetectorResult:
    """Return the means of one detector's figures with their spread; intervals are still those of
    the first.
    """
    spreads: dict[str, Spread] = {}
    for figure in AVERAGED:
        values = [getattr(result, figure) for result in found]
        if None not in values:
            spreads[figure] = _spread(values)
    first = found[0]
    # Seconds are the machine's mood, not the seed's doing; their mean is kept, their spread not.
    varying = {name: spread for name, spread in spreads.items() if name != "seconds_per_epoch"}
    means: dict[str, Any] = {
        figure: spreads[figure].mean if figure in spreads else None for figure in AVERAGED
    }
    return dataclasses.replace(
        first,
        **means,
        sign=first.sign if all(result.sign == first.sign for result in found) else None,
        chosen=_chosen(found),
        seeds=SeedSpread(len(found), varying),
    )


def _spread(values: list[float]) -> Spread:
    low, high = float(min(values)), float(max(values))
    if low == high:
        return Spread(low, 0.0, low, high)  # exactly: a mean of equals may differ in its last digit
    return Spread(statistics.fmean(values), statistics.stdev(values), low, high)


def _chosen(found: list[DetectorResult]) -> dict[str, int | str]:
    """Return what was chosen: once where all seeds agree, else one after the other."""
    chosen: dict[str, int | str] = {}
    for key in dict.fromkeys(key for result in found for key in result.chosen):
        values = [result.chosen.get(key, "-") for result in found]
        same = all(value == values[0] for value in values)
        chosen[key] = values[0] if same else "/".join(str(value) for value in values)
    return chosen


def _with_intervals(
    result: DetectorResult, name: str, comparison: Comparison, best: str | None
) -> DetectorResult:
    return dataclasses.replace(
        result,
        auroc_interval=bounds(comparison.auroc[name]),
        auprc_interval=bounds(comparison.auprc[name]),
        difference_to_logprob_mean=difference(comparison, name, BASELINE),
        difference_to_best=difference(comparison, name, best),
    )


def _joined_scores(
    runs: dict[int, Results], folder: Path, names: list[str]
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return the known labels ``[n]`` and by detector the scores ``[seeds, n]`` of those samples.

    Raises:
        DetectorError: Runs were measured on different test samples.
    """
    if not names:
        return np.empty(0), {}
    tables = [_read_scores(seed_folder(folder, seed) / SCORES_NAME, names) for seed in runs]
    labels = tables[0].labels
    for seed, table in zip(runs, tables, strict=True):
        if table.labels != labels:
            raise DetectorError(
                f"seeds {next(iter(runs))} and {seed} were measured on different test samples or "
                "labels; the data set was changed in between: train again"
            )
    known = [key for key, label in labels.items() if label is not None]
    measured = next(iter(runs.values())).detectors[names[0]]
    if len(known) != measured.n_pos + measured.n_neg:
        raise DetectorError(
            f"{SCORES_NAME} has {len(known)} labelled samples, {RESULTS_NAME} beside it "
            f"{measured.n_pos + measured.n_neg}: train again"
        )
    scores = {
        name: np.array([[table.scores[name][key] for key in known] for table in tables])
        for name in names
    }
    return np.array([labels[key] for key in known], dtype=np.float64), scores


def _read_scores(path: Path, names: list[str]) -> _Scores:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return _Scores(
            labels={row["key"]: float(row["label"]) if row["label"] else None for row in rows},
            scores={name: {row["key"]: float(row[name]) for row in rows} for name in names},
        )
    except OSError as error:
        raise DetectorError(f"no scores at {path}: {error.strerror}; train again") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DetectorError(f"{path} is not a scores.csv of this version: {error!r}") from error
