"""Settings of training: the fields of `TrainConfig` decide what a fit computes, `TrainOptions` adds
those of the ``train`` command, `PredictOptions` has those of ``predict``.

These classes are the only place where defaults and help texts are written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

from wdsbench.detect.registry import DETECTOR_NAMES, detector_spec
from wdsbench.options import option
from wdsbench.records import SPLITS

CHOICES = {
    "schedule": ("constant", "cosine"),
    "class_weight": ("none", "balanced"),
    "precision": ("float32", "bf16"),
}

#: Values of ``PredictOptions.split``.
SPLIT_CHOICES = (*SPLITS, "all")

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
class TrainConfig:
    """Settings that determine a fit and its figures; stored in ``results.json``.

    The defaults suit a few thousand traces on two CPU cores.

    Attributes:
        torch_threads: Threads of torch operators; None: one for small detectors, torch's own number
            for large ones.
        resamples: Bootstrap resamples.
        confidence: Confidence level of the intervals.
    """

    epochs: int = option(30, "Maximum number of passes over the training split.")
    batch_size: int = option(64, "Samples per batch.")
    learning_rate: float = option(2e-3, "Learning rate of AdamW.")
    # Far above the usual 0.01: with a few thousand traces a detector overfits within two epochs;
    # strong decay acts like the ridge penalty of a linear probe.
    weight_decay: float = option(1.0, "Weight decay of AdamW, applied to matrices.")
    patience: int = option(6, "Stop after this many epochs without a better validation AUROC.")
    hidden: int = option(64, "Width of trained detectors.")
    depth: int = option(2, "Number of LSTM layers of trained detectors.")
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
    layers: tuple[int, ...] | None = option(None, "Layers to read, as 0,5,11; all by default.")
    resamples: int = 2000
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Raise ValueError, with the field, the value and the range, for a value out of range."""
        for name in ("epochs", "batch_size", "patience", "hidden", "depth", "resamples"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("num_workers", "shuffle", "checkpoint_seconds"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        for name in ("threads", "torch_threads", "max_steps"):
            value = getattr(self, name)
            _check(name, value, value is None or value >= 1, "at least 1, or None")
        for name in ("learning_rate", "clip_norm", "rank_timeout_seconds"):
            value = getattr(self, name)
            _check(name, value, 0 < value < math.inf, "above 0")
        for name, words in CHOICES.items():
            _check(name, getattr(self, name), getattr(self, name) in words, f"one of {words}")
        _check("seed", self.seed, 0 <= self.seed < 2**63, "in 0 .. 2**63 - 1")
        _check("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "at least 0")
        _check("dropout", self.dropout, 0 <= self.dropout < 1, "in [0, 1)")
        _check("confidence", self.confidence, 0 < self.confidence < 1, "in (0, 1)")
        _check("layers", self.layers, self.layers is None or len(self.layers) > 0, "not empty")

    def as_json(self) -> dict[str, object]:
        """Return the settings as JSON values, in order of definition."""
        values = {field.name: getattr(self, field.name) for field in fields(TrainConfig)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


@dataclass(frozen=True)
class TrainOptions(TrainConfig):
    """Options of the ``train`` command."""

    detectors: tuple[str, ...] = option(
        ("lstm",),
        f"Detectors, as a comma list or repeated: {', '.join(DETECTOR_NAMES)}; or all.",
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
        if not self.detectors:
            raise ValueError("detectors is empty; pass at least one name, or 'all'")
        for name in self.names:
            detector_spec(name)
        for name in ("search", "seeds"):
            value = getattr(self, name)
            _check(name, value, value is None or value >= 1, "at least 1")
        if self.search is not None and self.seeds is not None:
            raise ValueError(
                f"--search {self.search} and --seeds {self.seeds} cannot be combined; search first,"
                " then pass --seeds with the settings found"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the detectors, each once; ``all`` is replaced by all names."""
        asked = DETECTOR_NAMES if self.detectors == ("all",) else self.detectors
        return tuple(dict.fromkeys(asked))

    @property
    def config(self) -> TrainConfig:
        """The settings of the fits."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in fields(TrainConfig)})


@dataclass(frozen=True)
class PredictOptions:
    """Options of the ``predict`` command."""

    out: Path = option(Path("scores.csv"), "CSV file to write, one line per trace.")
    split: str = option("test", f"One of {', '.join(SPLIT_CHOICES)}.")
    device: str | None = option(None, _DEVICE_HELP)
    batch_size: int = option(TrainConfig.batch_size, "Samples per batch.")
    num_workers: int = option(0, _WORKERS_HELP)
    threads: int | None = option(None, _THREADS_HELP)

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown split."""
        if self.split not in SPLIT_CHOICES:
            raise ValueError(f"split {self.split!r} is not one of {', '.join(SPLIT_CHOICES)}")


def _check(name: str, value: object, valid: bool, rule: str) -> None:
    if not valid:
        raise ValueError(f"{name} is {value!r}; it must be {rule}")
