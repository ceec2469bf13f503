"""Reconstruction errors of a split, and passes over its patches, in constant memory.

Errors of samples without label 1 are added to percentiles (`wdsbench.train.quantiles`) and to a
sum; only labelled samples, which AUROC needs, are kept by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from wdsbench.detect.images import PCAFit
from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.train.examples import Examples
from wdsbench.train.fitted import FittedDetector
from wdsbench.train.quantiles import Percentiles
from wdsbench.train.scoring import each_score, merged, normal_errors
from wdsbench.train.step import moved, used_samples


@dataclass
class ValidationErrors:
    """Errors of a split.

    Attributes:
        percentiles: Of the samples without label 1; their number is ``percentiles.count``.
        total: Sum of the same errors.
        labelled: Errors by key of the samples with a label.
        seen: Number of samples, all of them.
    """

    percentiles: Percentiles = field(default_factory=Percentiles)
    total: float = 0.0
    labelled: dict[str, float] = field(default_factory=dict)
    seen: int = 0

    @property
    def mean(self) -> float:
        """Mean error of the samples without label 1."""
        return self.total / self.percentiles.count

    @classmethod
    def joined(cls, parts: Sequence[ValidationErrors]) -> ValidationErrors:
        """Return the errors of all ranks."""
        return cls(
            Percentiles.joined([part.percentiles for part in parts]),
            sum(part.total for part in parts),
            merged(part.labelled for part in parts),
            sum(part.seen for part in parts),
        )

    def aligned(self, examples: Examples) -> NDArray[np.float64]:
        """Return the errors in the order of ``examples``, float64 ``[n]``; NaN without a label.

        Raises:
            DetectorError: They are not those of the same samples.
        """
        found = [self.labelled.get(key, np.nan) for key in examples.keys]
        errors = np.array(found, dtype=np.float64)
        if self.seen != len(found) or not np.array_equal(~np.isnan(errors), examples.known):
            raise DetectorError(
                f"{self.seen} errors for {len(found)} samples; the loader returned other samples"
                " than before: pack again"
            )
        return errors


def validation_errors(
    fitted: FittedDetector, batches: Iterable[Batch], device: str
) -> ValidationErrors:
    """Return this rank's errors; raise DetectorError if one is not finite."""
    assert fitted.module is not None
    found = ValidationErrors()

    def take(batch: Batch, errors: Tensor) -> None:
        normal = normal_errors(batch, errors)
        found.percentiles.add(normal)
        found.total += float(normal.sum())
        found.seen += len(batch)
        labelled = used_samples(batch.label, reconstructs=False).tolist()
        values = errors.double().cpu().tolist()
        pairs = zip(batch.keys, values, labelled, strict=True)
        found.labelled.update({key: value for key, value, known in pairs if known})

    each_score(fitted.module, fitted.inputs, batches, take, device)
    return found


def add_patches(work: PCAFit, batches: Iterable[Batch], device: str) -> int:
    """Add the patches without label 1 to a pass of ``work`` and return their number."""
    count = 0
    for batch in batches:
        assert batch.image is not None, "the loader was not asked for images"
        (images,) = moved((batch.image,), device)
        used = used_samples(batch.label, reconstructs=True)
        if not bool(used.all()):
            images = images[used.to(images.device)]
        work.update(images)
        count += len(images)
    return count
