"""Fits one detector of a run on train and val, saves it, and scores val and test.

All ranks make the same calls; the first one writes. Work that can fail on one rank alone is done in
`Ranks.together`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wdsbench.detect.images import PASSES, PCADetector, PCAFit
from wdsbench.detect.registry import DetectorShape, DetectorSpec, LoaderNeeds
from wdsbench.detect.scale import RunningMoments, ScaleWeights, Standardise, log_weights
from wdsbench.loader.arguments import select_layers
from wdsbench.progress import Progress
from wdsbench.records import Batch
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.train import metrics
from wdsbench.train.checkpoint import save_detector
from wdsbench.train.config import FREE_ON_RESUME, TrainConfig
from wdsbench.train.examples import Examples
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.log import EpochRecord, FitResult, MetricsLog
from wdsbench.train.loop import FitData, fit
from wdsbench.train.measure import Outcome
from wdsbench.train.probe import fit_probe
from wdsbench.train.ranks import Ranks
from wdsbench.train.reconstruction import ValidationErrors, add_patches, validation_errors
from wdsbench.train.scoring import merged, seeded
from wdsbench.train.source import Source, labels_digest, require_members
from wdsbench.train.state import StateSaver, saved_setting
from wdsbench.train.step import balanced_weight
from wdsbench.train.stop import StopRequest
from wdsbench.train.text import fit_text

CHECKPOINTS_NAME = "checkpoints"
STATES_NAME = "state"

Moments = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Session:
    """A data set opened by the ranks of one call; ``progress`` draws bars on the first one."""

    source: Source
    ranks: Ranks
    stop: StopRequest
    progress: Progress

    @property
    def parts(self) -> tuple[Source, Ranks, StopRequest, Progress]:
        """All fields, in their order."""
        return self.source, self.ranks, self.stop, self.progress


@dataclass(frozen=True)
class FitContext(Session):
    """Data and services that the detectors of a run share.

    Attributes:
        examples: Samples of every split, of all ranks.
        resume: True to continue unfinished fits.
        moments: Mean and std of an input, by the name of its progress bar and the layers read.
    """

    examples: dict[str, Examples]
    index: DatasetIndex
    out: Path
    log: MetricsLog
    resume: bool = False
    moments: dict[tuple[str, tuple[int, ...] | None], Moments] = field(default_factory=dict)

    def with_config(self, config: TrainConfig) -> FitContext:
        """Return a context with other settings that shares the moments."""
        return dataclasses.replace(self, source=dataclasses.replace(self.source, config=config))

    def input_moments(self) -> Moments:
        """Return mean and std of the last answer token's states, float32 ``[L, D]`` (cached)."""
        return self._moments(LoaderNeeds(fields=("hidden",)), _states, "fitting the input scale")

    def input_weight_moments(self, needs: LoaderNeeds) -> Moments:
        """Return mean and std of the logarithms of ``graph.edge_attr``, float32 ``[1, 1]``
        (cached); 0 and 1 if there are no edges.

        Costs one pass over the training split with ``needs``, as much as an epoch reads.
        """
        none = torch.zeros(1, 1), torch.ones(1, 1)
        return self._moments(needs, _log_weights, "fitting the scale of attention", none)

    def save(self, fitted: FittedDetector) -> None:
        """Write a checkpoint on the first rank."""
        if self.ranks.is_first:
            save_detector(fitted, self.out / CHECKPOINTS_NAME / fitted.spec.name)

    def state_folder(self, name: str) -> Path:
        """Return the folder of the state of a detector's fit."""
        return self.out / STATES_NAME / name

    def saver(self, name: str, shape: DetectorShape) -> StateSaver:
        """Return the saver of a detector's fit."""
        setting = fit_setting(name, self.source.config, self.ranks, self.index)
        setting["shape"] = asdict(shape)
        return StateSaver(self.state_folder(name), setting, self.resume, self.stop)

    def _moments(
        self,
        needs: LoaderNeeds,
        values: Callable[[Batch], Tensor],
        what: str,
        none: Moments | None = None,
    ) -> Moments:
        """Return mean and std of ``values`` over the training split; ``none`` if there are none."""

        def read() -> RunningMoments:
            running = RunningMoments()
            with self.source.batches("train", needs) as batches:
                for batch in self.progress(batches, len(batches), what):
                    if len(batch):
                        running.update(values(batch))
            return running

        key = what, self.source.config.layers
        if key not in self.moments:
            running = RunningMoments.joined(self.ranks.together(read))
            if none is not None and not running.count:
                return none
            mean, std = running.finish()
            self.moments[key] = mean.cpu(), std.cpu()
        return self.moments[key]


def _states(batch: Batch) -> Tensor:
    assert batch.hidden is not None, "the loader was asked for hidden states"
    return batch.hidden


def _log_weights(batch: Batch) -> Tensor:
    return log_weights(batch.graph.edge_attr).view(-1, 1, 1)


def fit_setting(
    name: str, config: TrainConfig, ranks: Ranks, index: DatasetIndex
) -> dict[str, Any]:
    """Return the settings, apart from the shape, that must not change when a fit resumes."""
    settings = {k: v for k, v in config.as_json().items() if k not in FREE_ON_RESUME}
    labels = labels_digest(index)
    return {**settings, "detector": name, "ranks": ranks.count, "labels": labels}


def run_detector(spec: DetectorSpec, context: FitContext) -> Outcome:
    """Fit one detector on train and val, save it, and score val and test; see `fit_detector`."""
    fitted, fit_result = fit_detector(spec, context)
    fitted = dataclasses.replace(fitted, traces=StoredTraces.of(context.index))
    if spec.reconstructs:
        return _set_threshold(fitted, fit_result, context)
    val = context.examples["val"]
    val_scores = _scores(fitted, context, "val")
    known = val_scores[val.known]
    if spec.kind == "closed_form" and metrics.auroc(val.known_labels, known) < 0.5:
        fitted = dataclasses.replace(fitted, sign=-1)
        val_scores, known = -val_scores, -known
    threshold = metrics.best_threshold(val.known_labels, known)
    temperature = None
    if fitted.calibrated:
        temperature = metrics.fit_temperature(metrics.logits_of(known), val.known_labels)
    fitted = dataclasses.replace(fitted, threshold=threshold, temperature=temperature)
    context.save(fitted)
    test_scores = _scores(fitted, context, "test")
    return Outcome(fitted, val_scores, test_scores, fit_result)


def fit_detector(
    spec: DetectorSpec, context: FitContext
) -> tuple[FittedDetector, FitResult | None]:
    """Fit one detector on train and val; no other split is opened.

    Raises:
        DetectorError: It cannot be fitted on this data; raised on all ranks.
    """
    require_members(context.index, spec.needs)
    if spec.kind == "closed_form":
        return FittedDetector(spec, layers=context.source.config.layers), None
    if spec.reconstructs and spec.kind == "probe":
        return _fit_components(spec, context), None
    if spec.kind in ("probe", "text"):
        return _fit_probe(spec, context), None
    return _fit_trained(spec, context)


def _fit_probe(spec: DetectorSpec, context: FitContext) -> FittedDetector:
    source = context.source
    fit_on_ranks = fit_text if spec.kind == "text" else fit_probe
    with seeded(source.config.seed, spec.name):
        fitted = context.ranks.guarded(
            lambda gather: fit_on_ranks(
                spec, source.batches, source.config, gather=gather, progress=context.progress
            )
        )
    assert fitted.module is not None
    fitted.module.to(source.device)
    return fitted


def _fit_components(spec: DetectorSpec, context: FitContext) -> FittedDetector:
    source, ranks = context.source, context.ranks
    shape, _ = _shape(spec, context)
    with seeded(source.config.seed, spec.name), source.batches("train", spec.needs) as batches:
        detector = PCADetector(shape).to(source.device)

        def read() -> int:
            watched = context.progress(batches, len(batches), f"fitting {spec.name}")
            return add_patches(work, watched, source.device)

        work = PCAFit(detector)
        for _ in range(PASSES):
            count = sum(ranks.together(read))  # an error of one rank ends all before the sum
            ranks.add(work.sums)
            work.finish(count)
    # Solvers may differ in the last digit between machines.
    weights, *_ = ranks.gather(detector.state_dict() if ranks.is_first else None)
    assert weights is not None
    detector.load_state_dict(weights)
    return FittedDetector(spec, shape, detector.eval(), source.config.layers)


def _set_threshold(
    fitted: FittedDetector, fit_result: FitResult | None, context: FitContext
) -> Outcome:
    """Set the percentile of the validation errors as threshold, save, and score the test split."""
    source, spec, val = context.source, fitted.spec, context.examples["val"]
    assert fitted.module is not None

    def read() -> ValidationErrors:
        with source.batches("val", spec.needs) as batches:
            watched = context.progress(batches, len(batches), f"validating {spec.name}")
            return validation_errors(fitted, watched, source.device)

    found = ValidationErrors.joined(context.ranks.together(read))
    fitted = dataclasses.replace(fitted, threshold=found.percentiles.at(source.config.percentile))
    context.save(fitted)
    test_scores = _scores(fitted, context, "test")
    return Outcome(fitted, found.aligned(val), test_scores, fit_result, found)


def _fit_trained(spec: DetectorSpec, context: FitContext) -> tuple[FittedDetector, FitResult]:
    source, config = context.source, context.source.config
    assert spec.build is not None
    with source.batches("train", spec.needs):
        pass  # raises "not available" before a pass over the data
    shape, moments = _shape(spec, context)
    weight_moments = None
    if spec.scales_weights and moments is not None:
        weight_moments = context.input_weight_moments(spec.needs)
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
        return fitted, _train(fitted, shape, context)


def _shape(spec: DetectorSpec, context: FitContext) -> tuple[DetectorShape, Moments | None]:
    """Return a detector's sizes and its input scale; no scale if a saved state has it."""
    config = context.source.config
    saved = saved_setting(context.state_folder(spec.name)) if context.resume else None
    if saved is not None:
        return DetectorShape(**saved["shape"]), None
    index = context.index
    sizes = (config.hidden, config.depth, config.dropout, index.num_heads)
    if spec.reconstructs:
        channels = select_layers(config.layers, index.num_layers).size
        return DetectorShape(channels, index.num_features, *sizes), None
    mean, std = context.input_moments()
    num_layers, num_features = mean.shape
    return DetectorShape(num_layers, num_features, *sizes), (mean, std)


def _train(fitted: FittedDetector, shape: DetectorShape, context: FitContext) -> FitResult:
    source, config, spec = context.source, context.source.config, fitted.spec
    assert spec.inputs is not None
    assert fitted.module is not None

    def on_epoch(record: EpochRecord) -> None:
        context.log.write(spec.name, record)
        if record.best:
            context.save(fitted)

    counts = context.examples["train"].counts()
    with (
        source.batches("train", spec.needs, shuffled=True) as train_batches,
        source.batches("val", spec.needs) as val_batches,
    ):
        data = FitData(
            inputs=spec.inputs,
            train=train_batches,
            val=val_batches,
            val_examples=context.examples["val"],
            positive_weight=balanced_weight(counts["n_pos"], counts["n_neg"])
            if config.class_weight == "balanced" and not spec.reconstructs
            else None,
            reconstructs=spec.reconstructs,
        )
        return fit(
            fitted.module,
            data,
            config,
            device=source.device,
            ranks=context.ranks,
            saver=context.saver(spec.name, shape),
            on_epoch=on_epoch,
            on_resume=partial(context.log.write, spec.name),
            what=f"training {spec.name}",
            progress=context.progress,
        )


def _scores(fitted: FittedDetector, context: FitContext, split: str) -> NDArray[np.float64]:
    """Return the scores of all ranks' samples of a split, in the order of its examples."""

    def score() -> dict[str, float]:
        with context.source.batches(split, fitted.needs, layers=fitted.layers) as batches:
            return fitted.scores(batches, context.source.device)

    return context.examples[split].align(merged(context.ranks.together(score)))
