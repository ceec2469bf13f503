"""The content of ``results.json`` as records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wdsbench.detect.registry import CONTROLS, TEXT_CONTROL
from wdsbench.errors import DetectorError

RESULTS_NAME = "results.json"

#: Percentiles of test errors in `ErrorFigures`.
PERCENTILES = (0, 5, 25, 50, 75, 95, 99, 100)

_INTERVALS = ("auroc_interval", "auprc_interval")
_DIFFERENCES = (
    "difference_to_logprob_mean",
    "difference_to_best",
    "difference_to_control",
    "adds_to_text",
)


@dataclass(frozen=True)
class Difference:
    """AUROC minus that of the detector ``to`` on the same test samples; the interval is paired."""

    to: str
    difference: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Spread:
    """One figure over several trainings that differ only in their seed.

    ``std``: sample standard deviation (divisor n - 1); 0 for one training.
    """

    mean: float
    std: float
    min: float
    max: float


@dataclass(frozen=True)
class SeedSpread:
    """Variation of a detector's figures (by name) over ``n`` seeds, on the same test samples."""

    n: int
    figures: dict[str, Spread]

    @property
    def varies(self) -> bool:
        """True if any figure differs between seeds; closed forms do not depend on the seed."""
        return any(spread.min != spread.max for spread in self.figures.values())


@dataclass(frozen=True)
class ErrorFigures:
    """Reconstruction errors of all test samples, with or without a label.

    Attributes:
        validation_mean: Mean error of the validation samples without label 1.
        quantiles: Error by percentile of the test samples.
        above_threshold: Share of the test samples above the threshold.
        exact: True if the threshold is the exact percentile (see `wdsbench.train.quantiles`).
    """

    validation_mean: float
    quantiles: dict[str, float]
    above_threshold: float
    exact: bool


@dataclass(frozen=True)
class GroupFigures:
    """AUROC within each group of test questions, which base rates of groups do not influence.

    Attributes:
        mean: Mean over the groups, each counted once.
        auroc: By group.
        one_class: Number of groups that lack a class and have no AUROC.
    """

    mean: float
    auroc: dict[str, float]
    one_class: int


@dataclass(frozen=True, kw_only=True)
class DetectorResult:
    """Figures of one detector on the test split; sign, threshold, epoch, layer, token and
    temperature were chosen on validation. AUROC and the other figures that need labels are None if
    the test samples (``val_auroc``: the validation samples) lack a class, which only images may.

    With ``seeds``, figures are means over several trainings, and intervals are those of the mean.

    Attributes:
        auprc: Average precision.
        f1: F1 at ``threshold``, as is ``accuracy``.
        fpr95: False positive rate at a true positive rate of 95 %.
        ece: Expected calibration error; None, like its scaled form, ``temperature`` and the Brier
            scores, if scores are not probabilities.
        threshold: Score with the best F1 on validation; of reconstruction errors a percentile.
        errors: Reconstruction errors; None for other detectors.
        temperature: Divisor of the logits, fitted on validation, for the two ``scaled`` figures.
        n_pos: Number of hallucinated test samples.
        n_neg: Number of right test samples.
        n_unlabelled: Number of test samples without a label, which are in none of the figures.
        difference_to_logprob_mean: Difference to that baseline, if it was run.
        difference_to_best: Difference to the best detector on validation; None for the best one.
        difference_to_control: Difference to the best control on validation; None for that one.
        adds_to_text: AUROC of the text control and this detector combined, minus that of the text
            control alone (see `wdsbench.train.controls`); None without the text control.
        groups: AUROC by group; None without groups.
        verdict: ``adds``, ``leak`` or ``none``; None for controls and without the text control.
        sign: -1 if lower values of a closed form mean hallucinated; None if seeds differ.
        epochs: Number of epochs; None, like the next two fields, if nothing was trained.
        best_epoch: Epoch whose weights were kept, from 0.
        seconds_per_epoch: Mean seconds of a training pass.
        chosen: Other choices made on validation: layer, token, ...
        seeds: Spread over seeds; None for a single training.
    """

    auroc: float | None
    auroc_interval: tuple[float, float] | None
    auprc: float | None
    auprc_interval: tuple[float, float] | None = None
    f1: float | None
    accuracy: float | None
    fpr95: float | None
    ece: float | None = None
    ece_scaled: float | None = None
    val_auroc: float | None
    threshold: float
    temperature: float | None = None
    brier: float | None = None
    brier_scaled: float | None = None
    n_pos: int
    n_neg: int
    n_unlabelled: int | None = None
    errors: ErrorFigures | None = None
    difference_to_logprob_mean: Difference | None = None
    difference_to_best: Difference | None = None
    difference_to_control: Difference | None = None
    adds_to_text: Difference | None = None
    verdict: str | None = None
    groups: GroupFigures | None = None
    parameters: int
    sign: int | None = None
    epochs: float | None = None
    best_epoch: float | None = None
    seconds_per_epoch: float | None = None
    chosen: dict[str, int | str] = field(default_factory=dict)
    seeds: SeedSpread | None = None


@dataclass(frozen=True)
class Results:
    """Results of a run.

    Attributes:
        detectors: Figures by detector, in the order of the settings.
        not_available: Reasons, by detector, of those without figures.
        dataset: Path, counts per split, layers, features, labels.
        config: Settings of the run.
    """

    detectors: dict[str, DetectorResult]
    not_available: dict[str, str] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> str | None:
        """The detector with the highest validation AUROC; None if there is none."""
        return best_detector({name: found.val_auroc for name, found in self.detectors.items()})

    @property
    def verdict(self) -> str | None:
        """The verdict on the data set, that of `best`; None without the text control."""
        text = self.detectors.get(TEXT_CONTROL)
        if text is None or text.auroc_interval is None or self.best is None:
            return None
        return self.detectors[self.best].verdict or verdict_of(None, text.auroc_interval)

    @property
    def images(self) -> bool:
        """True if the data set holds images."""
        return self.dataset.get("kind") == "image"

    @property
    def confidence(self) -> float:
        """Confidence level of the intervals."""
        return float(self.config.get("confidence", 0.95))

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        return {
            "verdict": self.verdict,
            "detectors": {name: _result_json(result) for name, result in self.detectors.items()},
            "not_available": self.not_available,
            "dataset": self.dataset,
            "config": self.config,
        }


def best_detector(val_auroc: Mapping[str, float | None]) -> str | None:
    """Return the name with the highest validation AUROC, a control only if there is nothing else;
    None if there is none.
    """
    found = {name: area for name, area in val_auroc.items() if area is not None}
    return max(found, key=lambda name: (name not in CONTROLS, found[name]), default=None)


def verdict_of(adds_to_text: Difference | None, text_interval: tuple[float, float]) -> str:
    """Return the verdict on a detector; None: on the text alone."""
    if adds_to_text is not None and adds_to_text.interval[0] > 0:
        return "adds"
    return "leak" if text_interval[0] > 0.5 else "none"


def failure_text(not_available: Mapping[str, str]) -> str:
    """Return the reasons of all detectors without figures as one sentence."""
    return "; ".join(f"{name}: {reason}" for name, reason in not_available.items())


def load_results(path: str | Path) -> Results:
    """Return the results in ``path`` (a ``results.json``, or a folder with one).

    Raises:
        DetectorError: The file is missing, or not valid.
    """
    given = Path(path)
    file = given / RESULTS_NAME if given.is_dir() else given
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        found = {name: _result(entry) for name, entry in value["detectors"].items()}
        asked = [name for name in value["config"].get("detectors", []) if name in found]
        return Results(
            # JSON keys are sorted; the settings have the order.
            detectors={name: found[name] for name in [*asked, *found]},
            not_available=value["not_available"],
            dataset=value["dataset"],
            config=value["config"],
        )
    except OSError as error:
        raise DetectorError(f"no results at {given}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DetectorError(f"{file} is not a results.json of this version: {error!r}") from error


def _result_json(result: DetectorResult) -> dict[str, Any]:
    optional = (*_DIFFERENCES, "verdict", "groups", "errors", "seeds")
    absent = [name for name in optional if getattr(result, name) is None]
    value = {name: part for name, part in asdict(result).items() if name not in absent}
    if "seeds" in value:
        value["seeds"] = {"n": value["seeds"]["n"], **value["seeds"]["figures"]}
    return value


def _result(value: dict[str, Any]) -> DetectorResult:
    value = dict(value)
    for name in _INTERVALS:
        if value.get(name) is not None:
            value[name] = _pair(value[name])
    for name in _DIFFERENCES:
        if name in value:
            value[name] = Difference(**{**value[name], "interval": _pair(value[name]["interval"])})
    if "groups" in value:
        value["groups"] = GroupFigures(**value["groups"])
    if "errors" in value:
        value["errors"] = ErrorFigures(**value["errors"])
    if "seeds" in value:
        figures = dict(value["seeds"])
        n = figures.pop("n")
        spreads = {name: Spread(**spread) for name, spread in figures.items()}
        value["seeds"] = SeedSpread(n, spreads)
    return DetectorResult(**value)


def _pair(value: list[float]) -> tuple[float, float]:
    low, high = value
    return low, high
