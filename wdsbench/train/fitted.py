"""A fitted detector, and the data sets it can score."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from wdsbench.detect.images import Reconstruction
from wdsbench.detect.probe import LogisticProbe, token_states
from wdsbench.detect.registry import DetectorShape, DetectorSpec, LoaderNeeds
from wdsbench.detect.scale import Standardise
from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.shards.format.index import PackedImages
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.train.metrics import sigmoid
from wdsbench.train.scoring import score_batches, unique_scores


@dataclass(frozen=True)
class StoredImages:
    """How the patches of a data set were made of images.

    Attributes:
        dtype: Dtype of the images, as NumPy names it.
        range: The range of values that becomes 0 to 1: of the ``image``, or of each ``channel``.
        channels: The images' channels that are stored; None: all.
    """

    dtype: str
    range: str
    channels: tuple[int, ...] | None = None

    @classmethod
    def of(cls, packed: PackedImages | None, dtype: str) -> StoredImages | None:
        """Return the properties from the provenance of a data set; None if it has none."""
        if packed is None:
            return None
        channels = None if packed.channels is None else tuple(packed.channels)
        return cls(dtype, packed.range, channels)


@dataclass(frozen=True)
class StoredTraces:
    """Properties of a data set that a detector's inputs depend on.

    Attributes:
        num_layers: Stored layers; of images channels.
        num_features: Width of a stored state; of images pixels of a side.
        num_heads: Attention heads per layer; 0 if nothing is stored per head.
        reduce: Dimension reduction of the states (``"pca:64"``), or None.
        reduction: Hash of the reduction, 16 hex digits; data sets packed with ``pca:64`` have the
            same one only if they were packed from the same training traces.
        edge_rule: Rule of the stored attention edges (``"top:0.35"``); None if unknown.
        head_threshold: Minimum weight of the stored edges of single heads; None if unknown.
        model_layers: Indices of the stored layers in the model; None: all layers are stored.
        images: Of images: how they were packed; None if unknown.
    """

    num_layers: int
    num_features: int
    num_heads: int = 0
    reduce: str | None = None
    reduction: str | None = None
    edge_rule: str | None = None
    head_threshold: float | None = None
    model_layers: tuple[int, ...] | None = None
    images: StoredImages | None = None

    @classmethod
    def of(cls, index: DatasetIndex) -> StoredTraces:
        """Return the properties of an opened data set."""
        provenance = index.file.provenance
        note = index.fields[index.tensor.name].note
        words = [word.strip().partition(" ")[0] for word in note.split(";")]
        file = provenance.reduction
        return cls(
            num_layers=index.num_layers,
            num_features=index.num_features,
            num_heads=index.num_heads,
            reduce=next((word for word in words if word.startswith("pca:")), None),
            # reduction-<xxh3>.safetensors
            reduction=file and file.removeprefix("reduction-").removesuffix(".safetensors"),
            edge_rule=provenance.edge_rule,
            head_threshold=provenance.head_threshold,
            model_layers=index.model_layers,
            images=StoredImages.of(provenance.images, words[0]),
        )


@dataclass(frozen=True)
class FittedDetector:
    """Everything needed to score traces again.

    Attributes:
        shape: Sizes of the module; None for closed forms, as is ``module``.
        layers: Indices of the stored layers it reads; None: all.
        sign: Sign of a closed form's quantity; +1 for all others.
        threshold: Scores at or above it are classified as hallucinated, errors above it as
            anomalous; None before training ends.
        temperature: Divisor of the logits for calibrated probabilities; None: not fitted.
        token: The token that a probe reads.
        traces: Properties of the data set it was trained on; None: unknown (a raw trace).
    """

    spec: DetectorSpec
    shape: DetectorShape | None = None
    module: nn.Module | None = None
    layers: tuple[int, ...] | None = None
    sign: int = 1
    threshold: float | None = None
    temperature: float | None = None
    token: str = "last_answer"
    traces: StoredTraces | None = None

    @property
    def needs(self) -> LoaderNeeds:
        """Loader arguments for scoring, apart from ``layers``."""
        needs = self.spec.needs
        return needs.at_token(self.token) if self.spec.chooses_token else needs

    @property
    def chosen(self) -> dict[str, int | str]:
        """Layer and token, if they were chosen on validation."""
        if not self.spec.chooses_token:
            return {}
        place = int(self.module.layer) if isinstance(self.module, LogisticProbe) else 0
        layer = place if self.layers is None else self.layers[place]
        return {"layer": layer, "token": self.token}

    @property
    def calibrated(self) -> bool:
        """True if scores are probabilities of being hallucinated."""
        return self.module is not None and not self.spec.reconstructs

    @property
    def least(self) -> float | None:
        """The lowest score that is classified as hallucinated or anomalous; None: no threshold.

        An error must be above the threshold: of constant images all errors are equal.
        """
        if self.threshold is None or not self.spec.reconstructs:
            return self.threshold
        return float(np.nextafter(self.threshold, np.inf))

    @property
    def parameters(self) -> int:
        """Number of weights, without the input scale."""
        if self.module is None:
            return 0
        return sum(weight.numel() for weight in self.module.parameters())

    def scores(self, batches: Iterable[Batch], device: str = "cpu") -> dict[str, float]:
        """Return the score of each sample by key: a probability, a reconstruction error, or a
        closed form's signed quantity; raise DetectorError if an input is missing or a score is not
        finite.
        """
        if self.module is not None:
            logits = self.logits(batches, device)
            if not self.calibrated:
                return logits
            return dict(zip(logits, sigmoid(list(logits.values())).tolist(), strict=True))
        assert self.spec.score is not None
        keys: list[str] = []
        values: list[float] = []
        for batch in batches:
            keys += batch.keys
            values += (self.sign * self.spec.score(batch)).tolist()
        return unique_scores(keys, values)

    def logits(self, batches: Iterable[Batch], device: str = "cpu") -> dict[str, float]:
        """Return what the module returns for each sample, a logit or an error, by key; moves the
        module to ``device``.
        """
        assert self.module is not None
        self.module.to(device)
        return score_batches(self.module, self.inputs, batches, device)

    def probabilities(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Return the probabilities of ``logits``, after temperature scaling if it was fitted."""
        return sigmoid(np.asarray(logits, np.float64) / (self.temperature or 1.0))

    def error_map(self, image: Tensor) -> Tensor:
        """Return the squared error of every pixel of patches ``[B, C, P, P]`` on the module's
        device, the mean over channels, float32 ``[B, P, P]``. Only for detectors that reconstruct.
        """
        assert isinstance(self.module, Reconstruction), f"{self.spec.name} reconstructs nothing"
        with torch.inference_mode():
            return self.module.error_map(image)

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        """Return the module's arguments of a batch."""
        assert self.spec.inputs is not None
        if not self.spec.chooses_token:
            return self.spec.inputs(batch)
        assert self.module is not None
        scale = self.module.get_submodule("scale")
        assert isinstance(scale, Standardise)
        states, present = token_states(batch, self.token)
        # Samples without this token are scored at the mean of the training samples.
        return (states.where(present[:, None, None], scale.mean.to(states.device)),)

    def require_traces(self, stored: StoredTraces) -> None:
        """Raise DetectorError, with the differences, if a data set does not fit the detector."""
        differences = [
            f"{what} {_text(there)}, the detector was trained on {_text(here)}"
            for what, there, here in self._compared(stored)
            if there != here
        ]
        if differences:
            raise DetectorError(
                f"{self.spec.name} does not fit the data set: {'; '.join(differences)}; score "
                + ("images" if self.spec.reconstructs else "traces of the same model")
                + ", packed alike, or train a detector on this data set"
            )

    def _compared(self, stored: StoredTraces) -> list[tuple[str, object, object]]:
        """Return (name, value of the data set, value of the detector) for all its inputs."""
        needs, mine = self.spec.needs, self.traces
        if self.shape is None or self.spec.kind == "text":
            return []
        compared: list[tuple[str, object, object]] = []
        if self.spec.reconstructs:
            pixels = (stored.num_features, self.shape.num_features)
            compared.append(("pixels of a side are", *pixels))
            if mine is not None or self.layers is None:
                known = self.shape.num_layers if mine is None else mine.num_layers
                compared.append(("channels are", stored.num_layers, known))
            if mine is not None and mine.images is not None and stored.images is not None:
                ranges = (stored.images.range, mine.images.range)
                compared.append(("values become 0 to 1 by the range of the", *ranges))
            return compared
        if mine is not None or self.layers is None:
            known = self.shape.num_layers if mine is None else mine.num_layers
            compared.append(("layers are", stored.num_layers, known))
        if "hidden" in needs.fields:
            compared.append(("features are", stored.num_features, self.shape.num_features))
        if "heads" in needs.kinds or "sketch" in needs.kinds:
            compared.append(("attention heads are", stored.num_heads, self.shape.num_heads))
        if mine is None:
            return compared
        there, here = (
            "all" if traces.model_layers is None else ", ".join(map(str, traces.model_layers))
            for traces in (stored, mine)
        )
        compared.append(("the model's layers are", there, here))
        if "hidden" in needs.fields:
            compared.append(("states are reduced by", stored.reduce, mine.reduce))
            compared.append(("the reduction is", stored.reduction, mine.reduction))
        if "edges" in needs.kinds:
            compared.append(("edges are", stored.edge_rule, mine.edge_rule))
        if "heads" in needs.kinds:
            compared.append(("heads' edges are from", stored.head_threshold, mine.head_threshold))
        return compared


def _text(value: object) -> str:
    return "nothing" if value is None else str(value)
