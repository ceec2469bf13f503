"""What a fit says of its epochs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class EpochRecord:
    """One line of ``metrics.jsonl``.

    Attributes:
        epoch: From 0.
        loss: Mean over the labelled training samples, the detector's own penalty included.
        val_auroc: After the epoch.
        seconds: Of the training pass, data included, validation not.
        samples_per_second: Of the same pass, all ranks together.
        best: Whether no earlier epoch had a better validation AUROC.
        data: What the loader says its time was spent on; empty where it says nothing.
        step: Steps of gradient descent so far.
        learning_rate: Of the last step.
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
    """What a fit leaves behind; the detector itself holds the best epoch's weights.

    Attributes:
        records: One per epoch that was run.
        best_epoch: The epoch whose weights were kept.
        unlabelled: Training samples per epoch that were left out for want of a label.
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
