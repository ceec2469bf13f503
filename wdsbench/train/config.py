"""Settings of training: the fields of `TrainConfig` decide what a fit computes, `TrainOptions` are
those of the ``train`` command, `PredictOptions` those of ``predict``.

These classes are the only place where defaults and help texts are written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from wdsbench.detect.registry import (
    DETECTOR_NAMES,
    IMAGE_DETECTORS,
    TRACE_DETECTORS,
    detector_spec,
)
from wdsbench.options import option
from wdsbench.records import SPLITS

CHOICES = {
    "schedule": ("constant", "cosine"),
    "class_weight": ("none", "balanced"),
    "precision": ("float32", "bf16"),
}

#: Values of options of ``predict`` on image files.
IMAGE_CHOICES = {"join": ("mean", "max"), "on_error": ("fail", "record")}

#: Values of ``PredictOptions.split``.
SPLIT_CHOICES = (*SPLITS, "all")

#: Detectors that are trained if none is named.
TRACE_DEFAULT, IMAGE_DEFAULT = "lstm", "autoencoder"

#: Settings that may change on resume, because they change neither order nor weights.
FREE_ON_RESUME = frozenset(
    (
        "num_workers",
        "threads",
        "device",
        "resamples",
        "confidence",
        "checkpoint_seconds",
        "rank_timeout_seconds",
        "tensorboard",
    )
)


_DEVICE_HELP = "cpu, cuda, cuda:1, ...; by default CUDA if available, else cpu."
_THREADS_HELP = "Decode threads of the loader; by default the usable cores, at most 8."
_WORKERS_HELP = "Worker processes of the loader; 0 reads in this process."


@dataclass(frozen=True)
class _Settings:
    """Settings whose default is the same for traces and images.

    Attributes:
        torch_threads: Threads of torch operators; None: one for small detectors, torch's own number
            for large ones.
        resamples: Bootstrap resamples.
        confidence: Confidence level of the intervals.
    """

    epochs: int = option(30, "Maximum number of passes over the training split.")
    patience: int = option(6, "Stop after this many epochs that are not better on validation.")
    dropout: float = option(0.3, "Dropout of trained detectors.")
    clip_norm: float = option(1.0, "Maximum gradient norm.")
    max_steps: int | None = option(None, "Maximum number of optimiser steps; no limit by default.")
    schedule: str = option("constant", "Learning rate schedule: constant, or cosine down to 0.")
    class_weight: str = option("none", "Class weights of the loss: none, or balanced.")
    precision: str = option("float32", "float32, or bf16 (autocast).")
    compile: bool = option(False, "Compile the detectors with torch.compile.", flag="--compile")
    deterministic: bool = option(False, "Use deterministic operators only (on GPUs).")
    checkpoint_seconds: float = option(60.0, "Seconds between two saves of the resumable state.")
    rank_timeout_seconds: float = option(600.0, "Seconds after which a waiting rank gives up.")
    tensorboard: bool = option(False, "Write TensorBoard logs (extra: tensorboard).")
    seed: int = option(0, "Seed of order, weights, dropout and resampling.")
    device: str | None = option(None, _DEVICE_HELP)
    threads: int | None = option(None, _THREADS_HELP)
    torch_threads: int | None = None
    num_workers: int = option(0, _WORKERS_HELP)
    shuffle: int = option(1000, "Size of the shuffle buffer in samples.")
    layers: tuple[int, ...] | None = option(
        None, "Layers (of images: channels) to read, as 0,5,11; all by default."
    )
    group_by_id: str | None = option(
        None,
        "Report AUROC by group: the text before this in the question id (such as /) [groups that"
        " the data set has].",
        metavar="TEXT",
    )
    percentile: float = option(
        95.0, "Percentile of validation errors that is the threshold of detectors on images."
    )
    resamples: int = 2000
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Raise ValueError, with the field, the value and the range, for a value out of range."""
        for name in ("epochs", "patience", "resamples"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("num_workers", "shuffle", "checkpoint_seconds"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        for name in ("threads", "torch_threads", "max_steps"):
            value = getattr(self, name)
            _check(name, value, value is None or value >= 1, "at least 1, or None")
        for name in ("clip_norm", "rank_timeout_seconds"):
            value = getattr(self, name)
            _check(name, value, 0 < value < math.inf, "above 0")
        for name, words in CHOICES.items():
            _check(name, getattr(self, name), getattr(self, name) in words, f"one of {words}")
        _check("seed", self.seed, 0 <= self.seed < 2**63, "in 0 .. 2**63 - 1")
        _check("dropout", self.dropout, 0 <= self.dropout < 1, "in [0, 1)")
        _check("confidence", self.confidence, 0 < self.confidence < 1, "in (0, 1)")
        _check("percentile", self.percentile, 0 <= self.percentile <= 100, "in 0 .. 100")
        _check("group_by_id", self.group_by_id, self.group_by_id != "", "at least one character")
        _check("layers", self.layers, self.layers is None or len(self.layers) > 0, "not empty")


@dataclass(frozen=True)
class TrainConfig(_Settings):
    """Settings that determine a fit and its figures; stored in ``results.json``.

    The defaults suit a few thousand traces on two CPU cores; `for_images` has those for images.
    """

    batch_size: int = 64
    learning_rate: float = 2e-3
    # Far above the usual 0.01: with a few thousand traces a detector overfits within two epochs;
    # strong decay acts like the ridge penalty of a linear probe.
    weight_decay: float = 1.0
    hidden: int = 64
    depth: int = 2

    @classmethod
    def for_images(cls, **settings: Any) -> TrainConfig:
        """Return the defaults for images, with other ``settings`` in their place."""
        return cls(**{**IMAGE_DEFAULTS, **settings})

    def __post_init__(self) -> None:
        """Raise ValueError also for the fields that depend on the data."""
        super().__post_init__()
        for name in ("batch_size", "hidden", "depth"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        _check("learning_rate", self.learning_rate, 0 < self.learning_rate < math.inf, "above 0")
        _check("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "at least 0")

    def as_json(self) -> dict[str, object]:
        """Return the settings as JSON values, in order of definition."""
        values = {field.name: getattr(self, field.name) for field in fields(TrainConfig)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


#: Defaults of `TrainConfig` for images: plain Adam, and small batches, as patches are large.
IMAGE_DEFAULTS: dict[str, Any] = {
    "batch_size": 8,
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "hidden": 128,
    "depth": 3,
}


def _either(name: str, what: str) -> Any:
    """Return an option whose default depends on the data; its help text has both."""
    traces, images = getattr(TrainConfig, name), IMAGE_DEFAULTS[name]
    return option(None, f"{what}; by default {traces:g}, for images {images:g}.")


@dataclass(frozen=True)
class TrainOptions(_Settings):
    """Options of the ``train`` command."""

    batch_size: int | None = _either("batch_size", "Samples per batch")
    learning_rate: float | None = _either("learning_rate", "Learning rate of AdamW")
    weight_decay: float | None = _either("weight_decay", "Weight decay of AdamW, for matrices")
    hidden: int | None = _either(
        "hidden", "Width of trained detectors; of images the numbers per patch (latent, components)"
    )
    depth: int | None = _either("depth", "LSTM layers of trained detectors; of images convolutions")
    detectors: tuple[str, ...] | None = option(
        None,
        f"Detectors, as a comma list or repeated: {', '.join(DETECTOR_NAMES)}; or all (those"
        " that fit the data); controls of traces are always added. By default"
        f" {TRACE_DEFAULT}, for images {IMAGE_DEFAULT}.",
        flag="--detector",
        comma=True,
    )
    out: Path = option(Path("runs/train"), "Folder for results and checkpoints.")
    search: int | None = option(
        None,
        "First try N settings (learning rate, hidden, depth, dropout) and keep the best on"
        " validation; for detectors trained by gradient descent (extra: search).",
        metavar="N",
    )
    seeds: int | None = option(
        None,
        "Train N times, with N consecutive seeds from --seed; report means and spreads.",
        metavar="N",
    )
    resume: bool = option(False, "Resume the run in --out; start one if there is none.")

    def __post_init__(self) -> None:
        """Raise ValueError also for an unknown detector or none, and for both search and seeds."""
        super().__post_init__()
        if self.detectors is not None and not self.detectors:
            raise ValueError("detectors is empty; pass at least one name, or 'all'")
        for name in self.names(images=False):
            detector_spec(name)
        self.config(images=False)
        for name in ("search", "seeds"):
            value = getattr(self, name)
            _check(name, value, value is None or value >= 1, "at least 1")
        if self.search is not None and self.seeds is not None:
            raise ValueError(
                f"--search {self.search} and --seeds {self.seeds} cannot be combined; search first,"
                " then pass --seeds with the settings found"
            )

    def names(self, *, images: bool) -> tuple[str, ...]:
        """Return the detectors, each once; ``all`` and None depend on the data."""
        if self.detectors is None:
            return (IMAGE_DEFAULT if images else TRACE_DEFAULT,)
        every = IMAGE_DETECTORS if images else TRACE_DETECTORS
        return tuple(dict.fromkeys(every if self.detectors == ("all",) else self.detectors))

    def config(self, *, images: bool) -> TrainConfig:
        """Return the settings of the fits, with the defaults for images or for traces."""
        given = {f.name: getattr(self, f.name) for f in fields(TrainConfig)}
        depends = {name for name in IMAGE_DEFAULTS if given[name] is None}
        settings = {name: value for name, value in given.items() if name not in depends}
        return TrainConfig.for_images(**settings) if images else TrainConfig(**settings)


@dataclass(frozen=True)
class PredictOptions:
    """Options of the ``predict`` command."""

    out: Path | None = option(
        None,
        "CSV file to write, one line per sample [scores.csv]; of image files the folder to write.",
    )
    split: str = option("test", f"Of a data set: one of {', '.join(SPLIT_CHOICES)}.")
    device: str | None = option(None, _DEVICE_HELP)
    batch_size: int | None = option(
        None,
        f"Samples per batch; by default {TrainConfig.batch_size}, of image files"
        f" {IMAGE_DEFAULTS['batch_size']}.",
    )
    num_workers: int = option(0, _WORKERS_HELP)
    threads: int | None = option(None, _THREADS_HELP)
    stride: int | None = option(
        None, "Of image files: pixels from patch to patch [half the patch size]."
    )
    join: str = option(
        "mean",
        f"Of image files: errors where patches overlap, {' or '.join(IMAGE_CHOICES['join'])}.",
    )
    on_error: str = option(
        "fail", "Image file that cannot be used: fail, or record it in failures.jsonl and continue."
    )

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown choice, or a batch without a sample."""
        for name, choices in (("split", SPLIT_CHOICES), *IMAGE_CHOICES.items()):
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name} {value!r} is not one of {', '.join(choices)}")
        size = self.batch_size
        _check("batch_size", size, size is None or size >= 1, "at least 1")


def _check(name: str, value: object, valid: bool, rule: str) -> None:
    if not valid:
        raise ValueError(f"{name} is {value!r}; it must be {rule}")
