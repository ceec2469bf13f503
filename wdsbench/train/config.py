"""Settings of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

CHOICES = {
    "schedule": ("constant", "cosine"),
    "class_weight": ("none", "balanced"),
    "precision": ("float32", "bf16"),
}

#: Settings that may change when a run goes on: they change neither order nor weights.
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
        max_steps: At most so many steps of gradient descent; None: as epochs and patience say.
        schedule: Of the learning rate: ``"constant"``, or ``"cosine"`` down to zero over all steps.
        class_weight: ``"none"``, or ``"balanced"``: both classes weigh the same in the loss.
        precision: ``"float32"``, or ``"bf16"``: operators that bear it run in bfloat16 (autocast).
        compile: Let torch compile the detector.
        deterministic: Refuse operators whose results differ between runs (on GPUs).
        checkpoint_seconds: Between two savings of the state that ``--resume`` goes on from; the end
            of an epoch saves it too.
        rank_timeout_seconds: A rank that waits longer for the others gives up.
        tensorboard: Write TensorBoard logs beside ``metrics.jsonl``.
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
    max_steps: int | None = None
    schedule: str = "constant"
    class_weight: str = "none"
    precision: str = "float32"
    compile: bool = False
    deterministic: bool = False
    checkpoint_seconds: float = 60.0
    rank_timeout_seconds: float = 600.0
    tensorboard: bool = False
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
        _check(
            "checkpoint_seconds",
            self.checkpoint_seconds,
            self.checkpoint_seconds >= 0,
            "at least 0",
        )
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
