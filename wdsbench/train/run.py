"""One run: every detector fitted and measured on the same splits of one data set, and written down.

    results.json    figures of all detectors        scores.csv      test scores per sample
    metrics.jsonl   one line per epoch              report.md       the table
    roc.png         ROC curves                      curves.png      loss and AUROC per epoch
    checkpoints/NAME/   each detector, ready to score other traces

Whatever is chosen (epoch, layer, sign, threshold, which detector counts as best) is chosen on
validation; the test split is read once per detector, at its end.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wdsbench.detect.registry import (
    DETECTOR_NAMES,
    DetectorShape,
    DetectorSpec,
    LoaderNeeds,
    detector_spec,
)
from wdsbench.detect.scale import RunningMoments, Standardise
from wdsbench.errors import DetectorError
from wdsbench.files import remove_if_empty, write_whole
from wdsbench.progress import Progress, no_progress
from wdsbench.records import SPLITS
from wdsbench.train import metrics
from wdsbench.train.checkpoint import remove_detector, save_detector
from wdsbench.train.config import TrainConfig
from wdsbench.train.fitted import FittedDetector
from wdsbench.train.loop import EpochRecord, FitResult, fit, record_json, seeded
from wdsbench.train.measure import Outcome, measure
from wdsbench.train.report import write_markdown
from wdsbench.train.results import (
    RESULTS_NAME,
    Results,
    write_results,
)
from wdsbench.train.source import (
    Examples,
    OpenLoader,
    Source,
    default_open_loader,
    number_of_batches,
    read_examples,
    require_members,
)
from wdsbench.view.plots import RocCurve, plot_roc, plot_training

METRICS_NAME = "metrics.jsonl"
SCORES_NAME = "scores.csv"
REPORT_NAME = "report.md"
ROC_NAME = "roc.png"
CURVES_NAME = "curves.png"
CHECKPOINTS_NAME = "checkpoints"
_FILE_NAMES = (RESULTS_NAME, REPORT_NAME, SCORES_NAME, METRICS_NAME, ROC_NAME, CURVES_NAME)


@dataclass
class _Run:
    """What the detectors of a run share; ``index`` is the loader's, or None."""

    source: Source
    examples: dict[str, Examples]
    index: Any
    out: Path
    metrics_file: IO[str]
    progress: Progress
    moments: tuple[Tensor, Tensor] | None = field(default=None)

    def input_moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and std of the last answer token's states, float32 ``[L, D]``, kept."""
        if self.moments is None:
            running = RunningMoments()
            needs = LoaderNeeds(fields=("hidden",))
            with self.source.batches("train", needs) as batches:
                total = number_of_batches(batches)
                for batch in self.progress(batches, total, "fitting the input scale"):
                    assert batch.hidden is not None, "the loader was asked for hidden states"
                    running.update(batch.hidden)
            mean, std = running.finish()
            self.moments = mean.cpu(), std.cpu()
        return self.moments


def train(
    shards: str | Path,
    detectors: Sequence[str],
    out: str | Path,
    config: TrainConfig | None = None,
    progress: Progress = no_progress,
    open_loader: OpenLoader | None = None,
) -> Results:
    """Fit and evaluate ``detectors`` on the data set ``shards``, write everything into ``out`` and
    return the figures.

    Args:
        shards: What the loader opens.
        detectors: Names of the registry.
        out: Folder, made if need be; files of an earlier run in it are replaced.
        config: Settings; None: the defaults.
        progress: Draws bars.
        open_loader: The loader's constructor; None: the project's own.

    Raises:
        ValueError: An unknown detector, or none; a device that is not there.
        DetectorError: A split lacks a class, or no detector at all could be run (``results.json``
            then says why).
    """
    specs = [detector_spec(name) for name in dict.fromkeys(detectors)]
    if not specs:
        raise ValueError("no detector was asked for")
    config = config or TrainConfig()
    device = _device(config.device)
    source = Source(shards, config, device, open_loader or default_open_loader())
    examples: dict[str, Examples] = {}
    index: Any = None
    for split in SPLITS:
        with source.batches(split, LoaderNeeds()) as batches:
            examples[split] = read_examples(batches)
            index = getattr(batches, "index", None)
    _require_both_classes(examples)

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_earlier(folder)
    outcomes: dict[str, Outcome] = {}
    not_available: dict[str, str] = {}
    with (
        (folder / METRICS_NAME).open("w", encoding="utf-8") as metrics_file,
    ):
        run = _Run(source, examples, index, folder, metrics_file, progress)
        for spec in specs:
            try:
                outcomes[spec.name] = _run_detector(spec, run)
            except DetectorError as error:
                not_available[spec.name] = str(error)
    results = Results(
        detectors=measure(outcomes, examples, config),
        not_available=not_available,
        dataset=_dataset(shards, examples, index),
        config={
            **config.as_json(),
            "device": device,
            "detectors": [spec.name for spec in specs],
        },
    )
    _write(results, outcomes, examples["test"], folder)
    if not outcomes:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in not_available.items())
        raise DetectorError(f"none of the detectors could be run: {reasons}")
    return results


def result_files(out: str | Path) -> list[Path]:
    """Return the files and folders a run has left in ``out``, the results first."""
    places = [Path(out) / name for name in (*_FILE_NAMES, CHECKPOINTS_NAME)]
    return [place for place in places if place.exists()]


def _device(asked: str | None) -> str:
    """Return the device to train on; None: CUDA where there is a device, else the CPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    allowed = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{gpu}" for gpu in range(gpus))]
    if asked is None:
        return "cuda" if gpus else "cpu"
    if asked not in allowed:
        raise ValueError(
            f"device is {asked!r}; allowed here: {', '.join(allowed)}"
            + ("" if gpus else " (torch finds no GPU)")
        )
    return asked


def _remove_earlier(folder: Path) -> None:
    """Remove what an earlier run left, the results first; files of no run stay."""
    for name in _FILE_NAMES:
        (folder / name).unlink(missing_ok=True)
    for name in DETECTOR_NAMES:
        remove_detector(folder / CHECKPOINTS_NAME / name)
    remove_if_empty(folder / CHECKPOINTS_NAME)


def _require_both_classes(examples: dict[str, Examples]) -> None:
    for split, found in examples.items():
        counts = found.counts()
        if counts["n_pos"] == 0 or counts["n_neg"] == 0:
            raise DetectorError(
                f"split {split} has {counts['n_pos']} hallucinated, {counts['n_neg']} right, "
                f"{counts['n_unlabelled']} unlabelled samples, but needs both classes: "
                "pack more traces, or pack again with another --threshold"
            )


def _run_detector(spec: DetectorSpec, run: _Run) -> Outcome:
    """Fit one detector on train and val, save it, and score val and test."""
    source, config = run.source, run.source.config
    require_members(run.index, spec.needs)
    fit_result: FitResult | None = None
    fitted = FittedDetector(spec, layers=config.layers)
    if spec.kind != "closed_form":
        fitted, fit_result = _fit_weights(spec, run)
    val = run.examples["val"]
    val_scores = _scores(fitted, source, val, "val")
    known = val_scores[val.known]
    if spec.kind == "closed_form" and metrics.auroc(val.known_labels, known) < 0.5:
        fitted = dataclasses.replace(fitted, sign=-1)
        val_scores, known = -val_scores, -known
    threshold = metrics.best_threshold(val.known_labels, known)
    fitted = dataclasses.replace(fitted, threshold=threshold)
    save_detector(fitted, run.out / CHECKPOINTS_NAME / spec.name)
    test_scores = _scores(fitted, source, run.examples["test"], "test")
    return Outcome(fitted, val_scores, test_scores, fit_result)


def _fit_weights(spec: DetectorSpec, run: _Run) -> tuple[FittedDetector, FitResult | None]:
    source, config = run.source, run.source.config
    assert spec.build is not None
    assert spec.inputs is not None
    with source.batches("train", spec.needs):
        pass  # Says "not available" before a pass over the data is spent on the input scale.
    mean, std = run.input_moments()
    num_layers, num_features = mean.shape
    shape = DetectorShape(
        num_layers,
        num_features,
        config.hidden,
        config.depth,
        config.dropout,
        num_heads=getattr(run.index, "num_heads", 0),
    )
    with seeded(config.seed, spec.name, source.device):
        module = spec.build(shape)
        scale = module.get_submodule("scale")
        assert isinstance(scale, Standardise)
        scale.set_moments(mean, std)
        fitted = FittedDetector(spec, shape, module, config.layers)
        if spec.kind == "probe":
            from wdsbench.detect.probe import LogisticProbe
            from wdsbench.train.probe import fit_probe

            assert isinstance(module, LogisticProbe)
            fit_probe(module, lambda split: source.batches(split, spec.needs), run.progress)
            module.to(source.device)
            return fitted, None

        def on_epoch(record: EpochRecord) -> None:
            run.metrics_file.write(
                json.dumps(record_json(record, spec.name), sort_keys=True) + "\n"
            )
            run.metrics_file.flush()
            if record.best:
                save_detector(fitted, run.out / CHECKPOINTS_NAME / spec.name)

        with (
            source.batches("train", spec.needs, shuffled=True) as train_batches,
            source.batches("val", spec.needs) as val_batches,
        ):
            result = fit(
                module,
                spec.inputs,
                train_batches,
                val_batches,
                run.examples["val"],
                config,
                device=source.device,
                on_epoch=on_epoch,
                what=f"training {spec.name}",
                progress=run.progress,
            )
    return fitted, result


def _scores(
    fitted: FittedDetector, source: Source, examples: Examples, split: str
) -> NDArray[np.float64]:
    with source.batches(split, fitted.spec.needs) as batches:
        return examples.align(fitted.scores(batches, source.device))


def _dataset(shards: str | Path, examples: dict[str, Examples], index: Any) -> dict[str, Any]:
    return {
        "shards": str(shards),
        "splits": {split: found.counts() for split, found in examples.items()},
        "num_layers": getattr(index, "num_layers", None),
        "num_features": getattr(index, "num_features", None),
    }


def _write(results: Results, outcomes: dict[str, Outcome], test: Examples, folder: Path) -> None:
    write_whole(folder / SCORES_NAME, _scores_csv(outcomes, test).encode())
    write_markdown(results, folder / REPORT_NAME)
    curves = [
        RocCurve(name, outcomes[name].test_scores[test.known], result.auroc, result.auroc_interval)
        for name, result in results.detectors.items()
    ]
    if curves:
        plot_roc(folder / ROC_NAME, test.known_labels, curves)
    lines = (folder / METRICS_NAME).read_text(encoding="utf-8").splitlines()
    if lines:
        plot_training(folder / CURVES_NAME, [json.loads(line) for line in lines])
    # Last: who finds a results.json finds everything else too.
    write_results(results, folder / RESULTS_NAME)


def _scores_csv(outcomes: dict[str, Outcome], test: Examples) -> str:
    """Return test scores per sample as CSV; more means hallucinated, unknown labels are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["question_id", "key", "label", *outcomes])
    for place, (question_id, key) in enumerate(zip(test.question_ids, test.keys, strict=True)):
        label = test.labels[place]
        scores = [f"{outcome.test_scores[place]:.9g}" for outcome in outcomes.values()]
        writer.writerow([question_id, key, "" if np.isnan(label) else int(label), *scores])
    return text.getvalue()
