"""Means and spreads of the figures of several runs that differ only in their seed.

Two sources of variation are reported separately. The *spread* (standard deviation, minimum and
maximum over seeds, on the same test samples) is the variation between trainings. The *interval* is
the bootstrap interval of the mean over seeds: each resample of the test samples is scored with
every seed and averaged. It is not the interval of averaged scores, which would describe an
ensemble. Detectors are compared with the one of the highest mean validation AUROC.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import DetectorError
from wdsbench.files import write_json, write_whole
from wdsbench.train.bootstrap import compare
from wdsbench.train.config import TrainConfig
from wdsbench.train.controls import combined_name, control_figures, difference
from wdsbench.train.measure import BASELINE
from wdsbench.train.metrics import both_classes
from wdsbench.train.output import REPORT_NAME, ROC_NAME, SCORES_NAME
from wdsbench.train.plots import RocCurve, plot_roc
from wdsbench.train.report import markdown
from wdsbench.train.results import (
    RESULTS_NAME,
    DetectorResult,
    ErrorFigures,
    GroupFigures,
    Results,
    SeedSpread,
    Spread,
    best_detector,
)

#: Figures that are averaged; a figure that is None for one seed is None in the mean.
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


def seed_folder(out: str | Path, seed: int) -> Path:
    """Return the folder of one seed's run."""
    return Path(out) / f"seed-{seed:04d}"


def write_means(runs: dict[int, Results], folder: Path, config: TrainConfig) -> Results:
    """Write means, report and plot of ``runs`` (by seed) into ``folder`` and return the means.

    DetectorError is raised if the runs were measured on different test samples.
    """
    first = next(iter(runs.values()))
    asked = list(dict.fromkeys(name for run in runs.values() for name in _names(run)))
    whole = [name for name in asked if all(name in run.detectors for run in runs.values())]
    combined = [
        combined_name(name)
        for name in whole
        if all(run.detectors[name].adds_to_text is not None for run in runs.values())
    ]
    labels, scores = _joined_scores(runs, folder, whole, combined)
    comparison = None
    if both_classes(labels):  # of traces always
        comparison = compare(
            labels,
            scores,
            seed=config.seed,
            resamples=config.resamples,
            confidence=config.confidence,
        )
    means = {name: _mean([run.detectors[name] for run in runs.values()]) for name in whole}
    val_auroc = {name: result.val_auroc for name, result in means.items()}
    best = best_detector(val_auroc)
    results = Results(
        detectors={
            name: dataclasses.replace(
                result,
                auroc_interval=None if comparison is None else comparison.auroc[name].bounds,
                auprc_interval=None if comparison is None else comparison.auprc[name].bounds,
                difference_to_logprob_mean=difference(comparison, name, BASELINE),
                difference_to_best=difference(comparison, name, best),
                **control_figures(comparison, name, val_auroc),
            )
            for name, result in means.items()
        },
        not_available={name: _failures(name, runs, folder) for name in asked if name not in whole},
        dataset=first.dataset,
        config={**first.config, "seed": config.seed, "seeds": list(runs)},
    )
    write_whole(folder / REPORT_NAME, markdown(results).encode())
    curves = [
        RocCurve(name, scores[name], result.auroc, result.auroc_interval)
        for name, result in results.detectors.items()
        if result.auroc is not None and result.auroc_interval is not None
    ]
    if curves:
        plot_roc(folder / ROC_NAME, labels, curves, images=results.images)
    write_json(folder / RESULTS_NAME, results.as_json())
    return results


def _names(results: Results) -> list[str]:
    """Return all detectors of a run, with or without figures, in the order of the settings."""
    found = [*results.detectors, *results.not_available]
    asked = [name for name in results.config.get("detectors", []) if name in found]
    return [*asked, *found]


def _failures(name: str, runs: dict[int, Results], folder: Path) -> str:
    """Return the reason why ``name`` has no mean."""
    reasons = {
        seed: run.not_available.get(name, "no figures and no reason")
        for seed, run in runs.items()
        if name not in run.detectors
    }
    if len(reasons) == len(runs) and len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    words = "; ".join(f"seed {seed}: {reason}" for seed, reason in reasons.items())
    text = f"failed with {len(reasons)} of {len(runs)} seeds: {words}"
    others = [seed_folder(folder, seed).name for seed in runs if seed not in reasons]
    if others:
        text += f"; no mean is reported, see {', '.join(others)} for the other seeds"
    return text


def _mean(found: list[DetectorResult]) -> DetectorResult:
    """Return the means of one detector's figures with their spread, and the first one's
    intervals.
    """
    spreads: dict[str, Spread] = {}
    for figure in AVERAGED:
        values = [getattr(result, figure) for result in found]
        if None not in values:
            spreads[figure] = _spread(values)
    first = found[0]
    # Seconds depend on the machine, not on the seed: no spread.
    varying = {name: spread for name, spread in spreads.items() if name != "seconds_per_epoch"}
    means: dict[str, Any] = {
        figure: spreads[figure].mean if figure in spreads else None for figure in AVERAGED
    }
    return dataclasses.replace(
        first,
        **means,
        sign=first.sign if all(result.sign == first.sign for result in found) else None,
        chosen=_chosen(found),
        groups=_mean_groups([result.groups for result in found if result.groups is not None]),
        errors=_mean_errors([result.errors for result in found if result.errors is not None]),
        seeds=SeedSpread(len(found), varying),
    )


def _mean_errors(found: list[ErrorFigures]) -> ErrorFigures | None:
    """Return the means of all figures; None if there are none."""
    if not found:
        return None
    return ErrorFigures(
        statistics.fmean(one.validation_mean for one in found),
        {
            percent: statistics.fmean(one.quantiles[percent] for one in found)
            for percent in found[0].quantiles
        },
        statistics.fmean(one.above_threshold for one in found),
        all(one.exact for one in found),
    )


def _mean_groups(found: list[GroupFigures]) -> GroupFigures | None:
    """Return the means of all figures, of the same groups; None if there are none."""
    if not found:
        return None
    areas = {name: statistics.fmean(one.auroc[name] for one in found) for name in found[0].auroc}
    return GroupFigures(statistics.fmean(areas.values()), areas, found[0].one_class)


def _spread(values: list[float]) -> Spread:
    low, high = float(min(values)), float(max(values))
    if low == high:
        return Spread(low, 0.0, low, high)  # a computed mean may differ in its last digit
    return Spread(statistics.fmean(values), statistics.stdev(values), low, high)


def _chosen(found: list[DetectorResult]) -> dict[str, int | str]:
    """Return the choices: one value if all seeds agree, otherwise one per seed."""
    chosen: dict[str, int | str] = {}
    for key in dict.fromkeys(key for result in found for key in result.chosen):
        values = [result.chosen.get(key, "-") for result in found]
        same = all(value == values[0] for value in values)
        chosen[key] = values[0] if same else "/".join(str(value) for value in values)
    return chosen


def _joined_scores(
    runs: dict[int, Results], folder: Path, names: list[str], combined: list[str]
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return the known labels ``[n]`` and the scores ``[seeds, n]`` of each detector, and of those
    ``combined`` with the text control.
    """
    if not names:
        return np.empty(0), {}
    columns = [*names, *combined]
    tables = [_read_scores(seed_folder(folder, seed) / SCORES_NAME, columns) for seed in runs]
    labels, _ = tables[0]
    for seed, (others, _) in zip(runs, tables, strict=True):
        if others != labels:
            raise DetectorError(
                f"seeds {next(iter(runs))} and {seed} were measured on different test samples or "
                "labels; the data set has changed in between: train again"
            )
    known = [key for key, label in labels.items() if label is not None]
    measured = next(iter(runs.values())).detectors[names[0]]
    if len(known) != measured.n_pos + measured.n_neg:
        raise DetectorError(
            f"{SCORES_NAME} has {len(known)} labelled samples, {RESULTS_NAME} "
            f"{measured.n_pos + measured.n_neg}: train again"
        )
    joined = {
        name: np.array([[scores[name][key] for key in known] for _, scores in tables])
        for name in columns
    }
    return np.array([labels[key] for key in known], dtype=np.float64), joined


def _read_scores(
    path: Path, names: list[str]
) -> tuple[dict[str, float | None], dict[str, dict[str, float]]]:
    """Return the labels by member key (None: unknown), and the scores by detector and key."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        labels = {row["key"]: float(row["label"]) if row["label"] else None for row in rows}
        return labels, {name: {row["key"]: float(row[name]) for row in rows} for name in names}
    except OSError as error:
        raise DetectorError(f"no scores at {path}: {error.strerror}; train again") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DetectorError(f"{path} is not a scores.csv of this version: {error!r}") from error
