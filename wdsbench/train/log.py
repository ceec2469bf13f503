"""Logs of the epochs: ``metrics.jsonl``, and TensorBoard if enabled."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from wdsbench.train.records import EpochRecord, record_json

METRICS_NAME = "metrics.jsonl"
TENSORBOARD_NAME = "tensorboard"


class MetricsLog:
    """Writes the records of all detectors; a context manager."""

    def __init__(self, folder: Path | None, *, tensorboard: bool = False) -> None:
        """Create the files in ``folder``, in place of earlier ones.

        Args:
            folder: Folder of the files; None: nothing is written (ranks other than the first).
            tensorboard: True to write event files too, one TensorBoard run per detector.

        Raises:
            ValueError: TensorBoard is not installed.
        """
        self._folder = folder
        self._lines = (
            None if folder is None else (folder / METRICS_NAME).open("w", encoding="utf-8")
        )
        self._writers: dict[str, Any] | None = {} if tensorboard and folder is not None else None
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
        self._lines.write(json.dumps(record_json(record, detector), sort_keys=True) + "\n")
        self._lines.flush()
        if self._writers is not None:
            writer = self._writer(detector)
            for name in ("loss", "val_auroc", "learning_rate", "samples_per_second"):
                writer.add_scalar(name, getattr(record, name), record.epoch)
            writer.flush()

    def write_all(self, detector: str, records: Iterable[EpochRecord]) -> None:
        """Write the records of the epochs before a resume."""
        for record in records:
            self.write(detector, record)

    def __enter__(self) -> MetricsLog:
        """Return the log."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the files."""
        if self._lines is not None:
            self._lines.close()
        for writer in (self._writers or {}).values():
            writer.close()

    def _writer(self, detector: str) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        assert self._writers is not None
        assert self._folder is not None
        if detector not in self._writers:
            folder = self._folder / TENSORBOARD_NAME / detector
            self._writers[detector] = SummaryWriter(str(folder))
        return self._writers[detector]
