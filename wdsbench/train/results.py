"""What a run found: the content of ``results.json`` as records, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wdsbench.errors import DetectorError
from wdsbench.files import write_json

RESULTS_NAME = "results.json"

_INTERVALS = ("auroc_interval", "auprc_interval")
_DIFFERENCES = ("difference_to_logprob_mean", "difference_to_best")


@dataclass(frozen=True)
class Difference:
    """AUROC minus that of another detector on the same test samples.

    Attributes:
        to: The other detector.
        difference: Positive: this one is better.
        interval: Paired bootstrap interval.
    """

    to: str
    difference: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Spread:
    """One figure over several trainings that differ in their seed alone.

    Attributes:
        mean: Over the trainings.
        std: Sample standard deviation (divisor n - 1); 0 for one training.
        min: The lowest.
        max: The highest.
    """

    mean: float
    std: float
    min: float
    max: float


@dataclass(frozen=True)
class SeedSpread:
    """How much a detector's figures vary with the seed of its training, the test samples fixed.

    Attributes:
        n: Trainings.
        figures: By the name that the figure has in `DetectorResult`.
    """

    n: int
    figures: dict[str, Spread]

    @property
    def varies(self) -> bool:
        """Whether any figure differs between seeds; nothing in a closed form follows a seed."""
        return any(spread.min != spread.max for spread in self.figures.values())


@dataclass(frozen=True)
class DetectorResult:
    """Figures of one detector on the test split; sign, threshold, epoch, layer, token and
    temperature were chosen on validation.

    Where ``seeds`` is there, figures are means over several trainings, and intervals are those of
    the mean: what other test samples would change, not what another training would.

    Attributes:
        auroc: Area under the ROC curve.
        auroc_interval: Its bootstrap interval.
        auprc: Average precision.
        f1: At ``threshold``.
        accuracy: At ``threshold``.
        threshold: With the best F1 on validation; in units of the scores.
        fpr95: False positive rate where 95 % of the hallucinated are found.
        ece: Expected calibration error; None where scores are no probabilities.
        n_pos: Hallucinated test samples.
        n_neg: Right test samples.
        val_auroc: AUROC on validation.
        parameters: Number of weights.
        epochs: Epochs that were run; None where nothing was trained.
        seconds_per_epoch: Of the training pass, likewise.
        difference_to_logprob_mean: Where that baseline was run too.
        difference_to_best: To the detector that was best on validation; None for that one itself.
        auprc_interval: Bootstrap interval of ``auprc``. This and all below: None, or empty, in
            files of versions that did not have it.
        brier: Mean squared distance of probabilities from labels; None where there are none.
        temperature: Divisor of the logits, fitted on validation; None where there are no
            probabilities.
        ece_scaled: ``ece`` after division by ``temperature``.
        brier_scaled: ``brier`` after it.
        n_unlabelled: Test samples without a label: scored, but in none of these figures.
        sign: -1 where more of a closed form's quantity means right; None where seeds differ.
        best_epoch: From 0; the epoch whose weights were kept.
        chosen: What else was chosen on validation: layer, token, ...
        seeds: Of a detector that was trained with several seeds.
    """

    auroc: float
    auroc_interval: tuple[float, float]
    auprc: float
    f1: float
    accuracy: float
    threshold: float
    fpr95: float
    ece: float | None
    n_pos: int
    n_neg: int
    val_auroc: float
    parameters: int
    epochs: float | None = None
    seconds_per_epoch: float | None = None
    difference_to_logprob_mean: Difference | None = None
    difference_to_best: Difference | None = None
    auprc_interval: tuple[float, float] | None = None
    brier: float | None = None
    temperature: float | None = None
    ece_scaled: float | None = None
    brier_scaled: float | None = None
    n_unlabelled: int | None = None
    sign: int | None = None
    best_epoch: float | None = None
    chosen: dict[str, int | str] = field(default_factory=dict)
    seeds: SeedSpread | None = None


@dataclass(frozen=True)
class Results:
    """All detectors of a run.

    Attributes:
        detectors: By name, in the order they were asked for.
        not_available: By name the reason why a detector has no figures.
        dataset: What was read: path, counts per split, layers, features.
        config: Settings of the run.
    """

    detectors: dict[str, DetectorResult]
    not_available: dict[str, str] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> str | None:
        """The detector with the highest validation AUROC, the first of equals; None of none."""
        return max(self.detectors, key=lambda name: self.detectors[name].val_auroc, default=None)

    @property
    def confidence(self) -> float:
        """Of the intervals."""
        return float(self.config.get("confidence", 0.95))

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        return {
            "detectors": {name: _result_json(result) for name, result in self.detectors.items()},
            "not_available": self.not_available,
            "dataset": self.dataset,
            "config": self.config,
        }


def write_results(results: Results, path: Path) -> None:
    """Write ``results`` to ``path`` as JSON, atomically."""
    write_json(path, results.as_json())


def load_results(path: str | Path) -> Results:
    """Return the results in ``path`` (a ``results.json``, or a folder with one).

    Raises:
        DetectorError: The file is not there or not of this form.
    """
    given = Path(path)
    file = given / RESULTS_NAME if given.is_dir() else given
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        found = {name: _result(entry) for name, entry in value["detectors"].items()}
        asked = [name for name in value["config"].get("detectors", []) if name in found]
        return Results(
            # JSON keys are sorted; the order asked for is in the settings.
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
    value = dict(vars(result))
    for name in _INTERVALS:
        value[name] = None if value[name] is None else list(value[name])
    for name in _DIFFERENCES:
        difference: Difference | None = value.pop(name)
        if difference is not None:
            value[name] = {**vars(difference), "interval": list(difference.interval)}
    seeds: SeedSpread | None = value.pop("seeds")
    if seeds is not None:
        figures = {name: dict(vars(spread)) for name, spread in seeds.figures.items()}
        value["seeds"] = {"n": seeds.n, **figures}
    return value


def _result(value: dict[str, Any]) -> DetectorResult:
    value = dict(value)
    for name in _INTERVALS:
        if value.get(name) is not None:
            value[name] = _pair(value[name])
    for name in _DIFFERENCES:
        if name in value:
            value[name] = Difference(**{**value[name], "interval": _pair(value[name]["interval"])})
    if "seeds" in value:
        figures = dict(value["seeds"])
        n = figures.pop("n")
        spreads = {name: Spread(**spread) for name, spread in figures.items()}
        value["seeds"] = SeedSpread(n, spreads)
    return DetectorResult(**value)


def _pair(value: list[float]) -> tuple[float, float]:
    low, high = value
    return low, high
