"""A detector that is ready to score: weights or closed form, what it reads, sign, threshold and
temperature together; and which data sets it can score.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from wdsbench.detect.probe import LogisticProbe, token_states
from wdsbench.detect.registry import DetectorShape, DetectorSpec, LoaderNeeds
from wdsbench.detect.scale import Standardise
from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.train.loop import score_batches
from wdsbench.train.metrics import sigmoid


@dataclass(frozen=True)
class StoredTraces:
    """What of a data set decides whether a detector trained on it can score another one.

    Attributes:
        num_layers: Layers that are stored.
        num_features: Width of a stored state.
        num_heads: Attention heads of a layer; 0 where nothing of single heads is stored.
        reduce: How states were made narrower (``"pca:64"``), or None.
        reduction: The 16 hex digits of what they were made narrower with; two data sets packed with
            ``pca:64`` have different ones unless they hold the same training traces.
        edge_rule: Which attention edges are stored (``"top:0.35"``); None where it is not known.
        head_threshold: From which weight on those of single heads are; likewise.
        model_layers: Which of the model's layers are stored; None: all of them.
    """

    num_layers: int
    num_features: int
    num_heads: int = 0
    reduce: str | None = None
    reduction: str | None = None
    edge_rule: str | None = None
    head_threshold: float | None = None
    model_layers: tuple[int, ...] | None = None

    @classmethod
    def of(cls, index: Any) -> StoredTraces | None:
        """Return what an opened index says; None where there is none."""
        if index is None:
            return None
        provenance = getattr(getattr(index, "file", None), "provenance", None)
        fields = getattr(index, "fields", {})
        note = fields["hidden"].note if "hidden" in fields else ""
        words = [word.strip().partition(" ")[0] for word in note.split(";")]
        file = getattr(provenance, "reduction", None)
        threshold = getattr(provenance, "head_threshold", None)
        return cls(
            num_layers=index.num_layers,
            num_features=index.num_features,
            num_heads=getattr(index, "num_heads", 0),
            reduce=next((word for word in words if word.startswith("pca:")), None),
            # reduction-<xxh3>.safetensors
            reduction=file and str(file).removeprefix("reduction-").removesuffix(".safetensors"),
            edge_rule=getattr(provenance, "edge_rule", None),
            head_threshold=None if threshold is None else float(threshold),
            model_layers=getattr(index, "model_layers", None),
        )


@dataclass(frozen=True)
class FittedDetector:
    """Everything that is needed to score traces again.

    Attributes:
        spec: The registry's entry.
        shape: Sizes of the module; None for closed forms.
        module: With its weights; None for closed forms.
        layers: Stored layers it is given; None: all.
        sign: +1, or -1 where more of a closed form's quantity means right.
        threshold: Scores from here on are called hallucinated; None while training has not ended.
        temperature: Divisor of the logits that makes probabilities as sure as they deserve to be;
            None: not fitted.
        token: The token that a probe looks at.
        traces: The data set it was trained on; None where the loader had no index.
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
        """What scoring asks of the loader, beside ``layers``."""
        needs = self.spec.needs
        return needs.at_token(self.token) if self.spec.chooses_token else needs

    @property
    def chosen(self) -> dict[str, int | str]:
        """What was chosen on validation besides sign, threshold and epoch."""
        if not self.spec.chooses_token:
            return {}
        place = int(self.module.layer) if isinstance(self.module, LogisticProbe) else 0
        layer = place if self.layers is None else self.layers[place]
        return {"layer": layer, "token": self.token}

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
            logits = self.logits(batches, device)
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

    def logits(self, batches: Iterable[Batch], device: str = "cpu") -> dict[str, float]:
        """Return each sample's logit by its key; there must be a module, it moves to ``device``."""
        assert self.module is not None
        self.module.to(device)
        return score_batches(self.module, self._inputs, batches, device)

    def probabilities(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Return what ``logits`` mean after temperature scaling, where one was fitted."""
        return sigmoid(np.asarray(logits, np.float64) / (self.temperature or 1.0))

    def _inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        assert self.spec.inputs is not None
        if not self.spec.chooses_token:
            return self.spec.inputs(batch)
        assert self.module is not None
        scale = self.module.get_submodule("scale")
        assert isinstance(scale, Standardise)
        states, present = token_states(batch, self.token)
        # Who has no such token stands in the middle of the training samples.
        middle = scale.mean.to(states.device)
        return (states.where(present[:, None, None], middle),)

    def require_traces(self, stored: StoredTraces) -> None:
        """Check that the detector means the traces of a data set.

        Raises:
            DetectorError: It was trained on others: what differs, and what to do.
        """
        differences = [
            f"{what} {_told(there)}, the detector was trained on {_told(here)}"
            for what, there, here in self._compared(stored)
            if there != here
        ]
        if differences:
            raise DetectorError(
                f"{self.spec.name} does not fit the data set: {'; '.join(differences)}; score "
                "traces of the same model, packed alike, or train a detector on this data set"
            )

    def _compared(self, stored: StoredTraces) -> list[tuple[str, object, object]]:
        """Return (what, of the data set, of the detector) of all that its inputs depend on."""
        needs, mine = self.spec.needs, self.traces
        if self.shape is None or (mine is None and self.layers is not None):
            layers: list[tuple[str, object, object]] = []
        else:
            known = self.shape.num_layers if mine is None else mine.num_layers
            layers = [("layers are", stored.num_layers, known)]
        if self.shape is None:
            return layers
        compared = layers
        if "hidden" in needs.fields:
            compared.append(("features are", stored.num_features, self.shape.num_features))
        if needs.layout == "union-graph" or "sketch" in needs.fields:
            compared.append(("attention heads are", stored.num_heads, self.shape.num_heads))
        if mine is None:
            return compared
        there, here = (_numbers(traces.model_layers) for traces in (stored, mine))
        compared.append(("the model's layers are", there, here))
        if "hidden" in needs.fields:
            compared.append(("states are reduced by", stored.reduce, mine.reduce))
            compared.append(("the reduction is", stored.reduction, mine.reduction))
        if needs.layout == "graph":
            compared.append(("edges are", stored.edge_rule, mine.edge_rule))
        if needs.layout == "union-graph":
            compared.append(("heads' edges are from", stored.head_threshold, mine.head_threshold))
        return compared


def _numbers(layers: tuple[int, ...] | None) -> str:
    return "all" if layers is None else ", ".join(map(str, layers))


def _told(value: object) -> str:
    return "nothing" if value is None else str(value)
