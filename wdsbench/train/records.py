"""Records of the epochs of a fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class EpochRecord:
    """One line of ``metrics.jsonl``.

    Attributes:
        epoch: From 0.
        loss: Mean over the labelled training samples, including the detector's penalty.
        val_auroc: Validation AUROC after the epoch.
        seconds: Seconds of the training pass, without validation.
        samples_per_second: Rate of the training pass, over all ranks.
        best: True if no earlier epoch had as good a validation AUROC.
        data: The loader's statement on its bottleneck.
        step: Optimiser steps so far.
        learning_rate: Learning rate of the last step.
    """

    epoch: int
    loss: float
    val_auroc: float
    seconds: float
    samples_per_second: float
    best: bool
    data: str = ""
    step: int = 0
    learning_rate: float = 0.0


@dataclass(frozen=True)
class FitResult:
    """Result of a fit; the detector itself has the weights of the best epoch.

    Attributes:
        records: One per epoch.
        best_epoch: Epoch whose weights were kept.
        unlabelled: Training samples per epoch without a label, which were not used.
    """

    records: list[EpochRecord]
    best_epoch: int
    unlabelled: int

    @property
    def seconds_per_epoch(self) -> float:
        """Mean seconds of a training pass."""
        return sum(record.seconds for record in self.records) / len(self.records)


def record_json(record: EpochRecord, detector: str) -> dict[str, Any]:
    """Return ``record`` as a line of ``metrics.jsonl``."""
    return {"detector": detector, **asdict(record)}
