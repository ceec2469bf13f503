"""Settings of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run; the defaults suit a few thousand traces on two CPU cores.

    Attributes:
        epochs: At most so many passes over the training split.
        batch_size: Samples per batch.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW, on matrices (a step shrinks them by learning_rate * weight_decay).
            Far above the usual 0.01: with a few thousand traces a detector knows them by heart in
            two epochs, and strong decay is what a linear probe's ridge penalty is.
        patience: Epochs without a better validation AUROC before training stops.
        hidden: Width of trained detectors.
        depth: LSTM layers of trained detectors.
        dropout: Of trained detectors.
        clip_norm: Largest norm of a gradient.
        seed: Decides order, weights, dropout and resampling; the same seed gives the same numbers.
        device: ``"cpu"``, ``"cuda"``, ...; None: CUDA where there is a device, else CPU.
        threads: Decode threads of the loader; None: its default.
        torch_threads: Threads of torch's own operators; None: one for small detectors, for large
            ones as they are.
        num_workers: Worker processes of the loader.
        shuffle: Samples in the loader's shuffle buffer.
        layers: Layers to read; None: all.
        resamples: Bootstrap resamples.
        confidence: Of the intervals.
    """

    epochs: int = 30
    batch_size: int = 64
    learning_rate: float = 2e-3
    weight_decay: float = 1.0
    patience: int = 6
    hidden: int = 64
    depth: int = 2
    dropout: float = 0.3
    clip_norm: float = 1.0
    seed: int = 0
    device: str | None = None
    threads: int | None = None
    torch_threads: int | None = None
    num_workers: int = 0
    shuffle: int = 1000
    layers: tuple[int, ...] | None = None
    resamples: int = 2000
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Refuse values no run can have.

        Raises:
            ValueError: Named after the field, with the value seen and those allowed.
        """
        for name in ("epochs", "batch_size", "patience", "hidden", "depth", "resamples"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("num_workers", "shuffle"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        for name in ("threads", "torch_threads"):
            value = getattr(self, name)
            _check(name, value, value is None or value >= 1, "at least 1, or None")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            _check(name, value, 0 < value < math.inf, "above 0")
        _check("seed", self.seed, 0 <= self.seed < 2**63, "in 0 .. 2**63 - 1")
        _check("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "at least 0")
        _check("dropout", self.dropout, 0 <= self.dropout < 1, "in [0, 1)")
        _check("confidence", self.confidence, 0 < self.confidence < 1, "in (0, 1)")
        _check("layers", self.layers, self.layers is None or len(self.layers) > 0, "not empty")

    def as_json(self) -> dict[str, object]:
        """Return the settings as JSON values, in order of definition."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def _check(name: str, value: object, allowed: bool, rule: str) -> None:
    if not allowed:
        raise ValueError(f"{name} is {value!r}; it must be {rule}")
