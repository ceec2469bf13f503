"""A detector that is ready to score: weights or closed form, sign and threshold together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from wdsbench.detect.registry import DetectorShape, DetectorSpec
from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.train.loop import score_batches
from wdsbench.train.metrics import sigmoid


@dataclass(frozen=True)
class FittedDetector:
    """Everything that is needed to score traces again.

    Attributes:
        spec: The registry's entry.
        shape: Sizes of the module; None for closed forms.
        module: With its weights; None for closed forms.
        layers: Layers of the traces it reads; None: all.
        sign: +1, or -1 where more of a closed form's quantity means right.
        threshold: Scores from here on are called hallucinated; None while training has not ended.
    """

    spec: DetectorSpec
    shape: DetectorShape | None = None
    module: nn.Module | None = None
    layers: tuple[int, ...] | None = None
    sign: int = 1
    threshold: float | None = None

    @property
    def calibrated(self) -> bool:
        """Whether scores are probabilities of being hallucinated."""
        return self.module is not None

    @property
    def parameters(self) -> int:
        """Number of weights; the input scale is not counted."""
        if self.module is None:
            return 0
        return sum(weight.numel() for weight in self.module.parameters())

    def scores(self, batches: Iterable[Batch], device: str = "cpu") -> dict[str, float]:
        """Return each sample's score by its key: a probability, or a closed form's signed quantity.

        Raises:
            DetectorError: The samples lack what the detector needs, or a score is not finite.
        """
        if self.module is not None:
            assert self.spec.inputs is not None
            logits = score_batches(self.module, self.spec.inputs, batches, device)
            return dict(zip(logits, sigmoid(list(logits.values())).tolist(), strict=True))
        assert self.spec.score is not None
        found: dict[str, float] = {}
        count = 0
        for batch in batches:
            count += len(batch)
            values = (self.sign * self.spec.score(batch)).tolist()
            found.update(zip(batch.keys, values, strict=True))
        if len(found) != count:
            raise DetectorError(f"{count - len(found)} samples came twice; pack again")
        return found
