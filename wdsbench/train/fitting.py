"""One detector of a run: fitted on train and val, saved, and its scores on val and test.

All ranks go through the same steps; the first one writes. What could fail on the samples of one
rank alone is done together (see `ranks`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wdsbench.detect.registry import DetectorShape, DetectorSpec, LoaderNeeds
from wdsbench.detect.scale import RunningMoments, ScaleWeights, Standardise, log_weights
from wdsbench.progress import Progress
from wdsbench.train import metrics
from wdsbench.train.checkpoint import save_detector
from wdsbench.train.config import FREE_ON_RESUME, TrainConfig
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.keeper import Keeper, StopSwitch
from wdsbench.train.log import MetricsLog
from wdsbench.train.loop import FitData, fit, merged, seeded
from wdsbench.train.measure import Outcome
from wdsbench.train.probe import fit_probe
from wdsbench.train.ranks import Ranks
from wdsbench.train.records import EpochRecord, FitResult
from wdsbench.train.source import Examples, Source, number_of_batches, require_members
from wdsbench.train.state import saved_setting
from wdsbench.train.step import balanced_weight
from wdsbench.train.temperature import fit_temperature

CHECKPOINTS_NAME = "checkpoints"
STATES_NAME = "state"


@dataclass
class Run:
    """What the detectors of a run share.

    Attributes:
        source: The data.
        examples: Of every split, of all ranks.
        index: The loader's, or None.
        out: The run's folder.
        log: Takes what epochs say.
        progress: Draws bars.
        ranks: Who trains together.
        switch: Whether somebody asked for the end.
        resume: Whether unfinished fits are gone on with.
        moments: Mean and std of the states by the layers read, once they are known.
        weight_moments: The same of the logarithms of attention weights.
    """

    source: Source
    examples: dict[str, Examples]
    index: Any
    out: Path
    log: MetricsLog
    progress: Progress
    ranks: Ranks
    switch: StopSwitch
    resume: bool = False
    moments: dict[tuple[int, ...] | None, tuple[Tensor, Tensor]] = field(default_factory=dict)
    weight_moments: dict[tuple[int, ...] | None, tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )

    def with_config(self, config: TrainConfig) -> Run:
        """Return the run with other settings; what is known of the data is shared."""
        return dataclasses.replace(self, source=dataclasses.replace(self.source, config=config))

    def input_moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and std of the last answer token's states, float32 ``[L, D]``, kept."""
        layers = self.source.config.layers
        if layers not in self.moments:
            mean, std = RunningMoments.joined(self.ranks.together(self._running_moments)).finish()
            self.moments[layers] = mean.cpu(), std.cpu()
        return self.moments[layers]

    def input_weight_moments(self, needs: LoaderNeeds) -> tuple[Tensor, Tensor]:
        """Return mean and std of the logarithms of ``graph.edge_attr``, float32 ``[1, 1]``, kept.

        Costs a pass over the training split as ``needs`` reads it: what an epoch reads.
        """
        layers = self.source.config.layers
        if layers not in self.weight_moments:
            parts = self.ranks.together(lambda: self._running_weight_moments(needs))
            running = RunningMoments.joined(parts)
            if not running.count:  # not one edge: any scale will do
                return torch.zeros(1, 1), torch.ones(1, 1)
            mean, std = running.finish()
            self.weight_moments[layers] = mean.cpu(), std.cpu()
        return self.weight_moments[layers]

    def checkpoint_folder(self, name: str) -> Path:
        """Return where a detector is saved."""
        return self.out / CHECKPOINTS_NAME / name

    def keeper(self, name: str, shape: DetectorShape) -> Keeper:
        """Return who keeps the state of a detector's fit."""
        setting = fit_setting(name, self.source.config, self.ranks, self.index)
        return Keeper(
            folder=self.state_folder(name),
            setting={**setting, "shape": asdict(shape)},
            resume=self.resume,
            switch=self.switch,
        )

    def state_folder(self, name: str) -> Path:
        """Return where the state of a detector's fit is kept."""
        return self.out / STATES_NAME / name

    def _running_moments(self) -> RunningMoments:
        running = RunningMoments()
        with self.source.batches("train", LoaderNeeds(fields=("hidden",))) as batches:
            total = number_of_batches(batches)
            for batch in self.progress(batches, total, "fitting the input scale"):
                assert batch.hidden is not None, "the loader was asked for hidden states"
                running.update(batch.hidden)
        return running

    def _running_weight_moments(self, needs: LoaderNeeds) -> RunningMoments:
        running = RunningMoments()
        with self.source.batches("train", needs) as batches:
            total = number_of_batches(batches)
            for batch in self.progress(batches, total, "fitting the scale of attention"):
                if len(batch):
                    running.update(log_weights(batch.graph.edge_attr).view(-1, 1, 1))
        return running


def fit_setting(name: str, config: TrainConfig, ranks: Ranks, index: Any) -> dict[str, Any]:
    """Return what must be the same when a detector's fit goes on, but for its shape."""
    settings = {k: v for k, v in config.as_json().items() if k not in FREE_ON_RESUME}
    return {
        **settings,
        "detector": name,
        "ranks": ranks.count,
        "labels": labels_digest(index),
    }


def labels_digest(index: Any) -> str | None:
    """Return what names the labels of a data set: its table's hash; None without an index."""
    table = getattr(getattr(index, "file", None), "table", None)
    return None if table is None else str(table.xxh3)


def run_detector(spec: DetectorSpec, run: Run) -> Outcome:
    """Fit one detector on train and val, save it, and score val and test.

    Raises:
        DetectorError: It cannot be fitted on this data, on all ranks alike.
    """
    fitted, fit_result = fit_detector(spec, run)
    fitted = dataclasses.replace(fitted, traces=StoredTraces.of(run.index))
    val = run.examples["val"]
    val_scores = _scores(fitted, run, "val")
    known = val_scores[val.known]
    if spec.kind == "closed_form" and metrics.auroc(val.known_labels, known) < 0.5:
        fitted = dataclasses.replace(fitted, sign=-1)
        val_scores, known = -val_scores, -known
    threshold = metrics.best_threshold(val.known_labels, known)
    temperature = None
    if fitted.calibrated:
        temperature = fit_temperature(metrics.logits_of(known), val.known_labels)
    fitted = dataclasses.replace(fitted, threshold=threshold, temperature=temperature)
    if run.ranks.is_first:
        save_detector(fitted, run.checkpoint_folder(spec.name))
    test_scores = _scores(fitted, run, "test")
    return Outcome(fitted, val_scores, test_scores, fit_result, chosen=fitted.chosen)


def fit_detector(spec: DetectorSpec, run: Run) -> tuple[FittedDetector, FitResult | None]:
    """Fit one detector on train and val; no other split is opened.

    Raises:
        DetectorError: It cannot be fitted on this data, on all ranks alike.
    """
    require_members(run.index, spec.needs)
    return _FITS[spec.kind](spec, run)


def _closed_form(spec: DetectorSpec, run: Run) -> tuple[FittedDetector, FitResult | None]:
    return FittedDetector(spec, layers=run.source.config.layers), None


def _probe(spec: DetectorSpec, run: Run) -> tuple[FittedDetector, FitResult | None]:
    source = run.source
    with seeded(source.config.seed, spec.name):
        fitted = run.ranks.guarded(
            lambda gather: fit_probe(
                spec,
                source.batches,
                config=source.config,
                gather=gather,
                progress=run.progress,
            )
        )
    assert fitted.module is not None
    fitted.module.to(source.device)
    return fitted, None


def _trained(spec: DetectorSpec, run: Run) -> tuple[FittedDetector, FitResult | None]:
    source, config = run.source, run.source.config
    assert spec.build is not None
    with source.batches("train", spec.needs):
        pass  # Says "not available" before a pass over the data is spent on the input scale.
    shape, moments = _shape(spec, run)
    weight_moments = None
    if spec.scales_weights and moments is not None:
        weight_moments = run.input_weight_moments(spec.needs)
    with seeded(config.seed, spec.name, source.device):
        module = spec.build(shape)
        if moments is not None:
            scale = module.get_submodule("scale")
            assert isinstance(scale, Standardise)
            scale.set_moments(*moments)
        if weight_moments is not None:
            scale_weights = module.get_submodule("scale_weights")
            assert isinstance(scale_weights, ScaleWeights)
            scale_weights.set_moments(*weight_moments)
        fitted = FittedDetector(spec, shape, module, config.layers)
        return fitted, _train(fitted, shape, run)


_FITS = {"closed_form": _closed_form, "probe": _probe, "trained": _trained}


def _shape(spec: DetectorSpec, run: Run) -> tuple[DetectorShape, tuple[Tensor, Tensor] | None]:
    """Return a detector's sizes, and the input scale unless it comes back with a saved state."""
    config = run.source.config
    saved = saved_setting(run.state_folder(spec.name)) if run.resume else None
    if saved is not None:
        return DetectorShape(**saved["shape"]), None
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
    return shape, (mean, std)


def _train(fitted: FittedDetector, shape: DetectorShape, run: Run) -> FitResult:
    source, config, spec = run.source, run.source.config, fitted.spec
    assert spec.inputs is not None
    assert fitted.module is not None

    def on_epoch(record: EpochRecord) -> None:
        run.log.write(spec.name, record)
        if record.best and run.ranks.is_first:
            save_detector(fitted, run.checkpoint_folder(spec.name))

    counts = run.examples["train"].counts()
    with (
        source.batches("train", spec.needs, shuffled=True) as train_batches,
        source.batches("val", spec.needs) as val_batches,
    ):
        data = FitData(
            inputs=spec.inputs,
            train=train_batches,
            val=val_batches,
            val_examples=run.examples["val"],
            positive_weight=balanced_weight(counts["n_pos"], counts["n_neg"])
            if config.class_weight == "balanced"
            else None,
        )
        return fit(
            fitted.module,
            data,
            config,
            device=source.device,
            ranks=run.ranks,
            keeper=run.keeper(spec.name, shape),
            on_epoch=on_epoch,
            on_resume=lambda records: run.log.write_all(spec.name, records),
            what=f"training {spec.name}",
            progress=run.progress,
        )


def _scores(fitted: FittedDetector, run: Run, split: str) -> NDArray[np.float64]:
    """Return the scores of all ranks' samples of a split, in the order of its examples."""

    def score() -> dict[str, float]:
        with run.source.batches(split, fitted.needs, layers=fitted.layers) as batches:
            return fitted.scores(batches, run.source.device)

    return run.examples[split].align(merged(run.ranks.together(score)))
