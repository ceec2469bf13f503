"""Records of the epochs of a fit, and their logs: ``metrics.jsonl``, and TensorBoard if enabled."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

METRICS_NAME = "metrics.jsonl"
TENSORBOARD_NAME = "tensorboard"


@dataclass(frozen=True)
class EpochRecord:
    """One line of ``metrics.jsonl``.

    Attributes:
        epoch: From 0.
        loss: Mean over the training samples that are used, including the detector's penalty.
        val_auroc: Validation AUROC after the epoch; None for a detector that reconstructs.
        seconds: Seconds of the training pass, without validation.
        samples_per_second: Rate of the training pass, over all ranks.
        best: True if no earlier epoch was as good on validation.
        data: The loader's statement on its bottleneck.
        step: Optimiser steps so far.
        learning_rate: Learning rate of the last step.
        val_error: Mean reconstruction error of validation after the epoch, without samples of label
            1; None for other detectors.
    """

    epoch: int
    loss: float
    val_auroc: float | None
    seconds: float
    samples_per_second: float
    best: bool
    data: str = ""
    step: int = 0
    learning_rate: float = 0.0
    val_error: float | None = None


@dataclass(frozen=True)
class FitResult:
    """Result of a fit; the detector itself has the weights of ``best_epoch``.

    Attributes:
        records: One per epoch.
        best_epoch: Epoch whose weights were kept.
        left_out: Training samples per epoch that were not used (see `wdsbench.train.step`).
    """

    records: list[EpochRecord]
    best_epoch: int
    left_out: int

    @property
    def seconds_per_epoch(self) -> float:
        """Mean seconds of a training pass."""
        return sum(record.seconds for record in self.records) / len(self.records)


class MetricsLog:
    """Writes the records of all detectors; a context manager."""

    def __init__(self, folder: Path | None, *, tensorboard: bool = False) -> None:
        """Create the files in ``folder`` in place of earlier ones; None: nothing is written (ranks
        other than the first). ``tensorboard`` adds event files, one run per detector; ValueError is
        raised if TensorBoard is not installed.
        """
        self._folder = folder
        self._lines = (
            None if folder is None else (folder / METRICS_NAME).open("w", encoding="utf-8")
        )
        self._writers: dict[str, Any] = {}
        self._tensorboard = tensorboard
        if tensorboard:
            try:
                import torch.utils.tensorboard  # noqa: F401
            except ImportError as error:
                raise ValueError(
                    "TensorBoard is not installed; pip install 'wdsbench[tensorboard]'"
                ) from error

    def write(self, detector: str, record: EpochRecord) -> None:
        """Write one epoch's record."""
        if self._lines is None:
            return
        line = json.dumps({"detector": detector, **asdict(record)}, sort_keys=True)
        self._lines.write(line + "\n")
        self._lines.flush()
        if self._tensorboard:
            writer = self._writer(detector)
            for name in ("loss", "val_auroc", "val_error", "learning_rate", "samples_per_second"):
                if getattr(record, name) is not None:
                    writer.add_scalar(name, getattr(record, name), record.epoch)
            writer.flush()

    def __enter__(self) -> MetricsLog:
        """Return the log."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        if self._lines is not None:
            self._lines.close()
        for writer in self._writers.values():
            writer.close()

    def _writer(self, detector: str) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        assert self._folder is not None
        if detector not in self._writers:
            folder = self._folder / TENSORBOARD_NAME / detector
            self._writers[detector] = SummaryWriter(str(folder))
        return self._writers[detector]
