"""Names of the detectors: how each is built, what it reads, how it is fitted.

Importing this module does not import torch, so a command line can list the names.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from wdsbench.detect import baselines, strings
from wdsbench.errors import DetectorError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from wdsbench.detect.charm import Edges
    from wdsbench.records import Batch

Kind = Literal["closed_form", "probe", "text", "trained"]


@dataclass(frozen=True)
class LoaderNeeds:
    """Arguments ``fields``, ``tokens`` and ``layout`` of the loader, and the names of the member
    kinds that every trace must have.
    """

    fields: tuple[str, ...] = ()
    tokens: str | int = "last_answer"
    layout: str = "stack"
    kinds: tuple[str, ...] = ()

    @property
    def one_token(self) -> bool:
        """True if the states of one token are the only input."""
        return self.fields == ("hidden",) and self.tokens in ("last", "last_answer")

    @property
    def tensor(self) -> str | None:
        """The field that is decoded into one tensor per batch; None if neither is read."""
        return next((name for name in ("hidden", "image") if name in self.fields), None)

    def arguments(self) -> dict[str, Any]:
        """Return the loader's keyword arguments."""
        return {"fields": self.fields, "tokens": self.tokens, "layout": self.layout}

    def at_token(self, token: str) -> LoaderNeeds:
        """Return the needs of a probe that reads ``token``."""
        if token == "last_answer":
            return self
        tokens = "all" if token == "last_prompt" else "answer"
        return replace(self, tokens=tokens, layout="jagged")


@dataclass(frozen=True)
class DetectorShape:
    """Sizes a detector with weights is built from; saved with its weights.

    Attributes:
        num_layers: L, layers read from each trace; of images C, channels.
        num_features: D, width of a state; of images P, pixels of a side.
        hidden: Width inside the detector, and of each direction of an LSTM; of images the numbers
            that a patch is reduced to.
        depth: LSTM layers, or strided convolutions.
        num_heads: H, attention heads per layer; 0 if nothing is stored per head.
    """

    num_layers: int
    num_features: int
    hidden: int = 64
    depth: int = 2
    dropout: float = 0.3
    num_heads: int = 0

    def require_heads(self) -> None:
        """Check that attention heads are stored.

        Raises:
            DetectorError: ``num_heads`` is 0.
        """
        if self.num_heads < 1:
            raise DetectorError(
                f"num_heads is {self.num_heads}; must be at least 1, the number of attention heads"
            )


@dataclass(frozen=True)
class DetectorSpec:
    """One entry of the registry.

    Attributes:
        name: The detector's name everywhere (``--detector``, JSON, plots).
        kind: ``closed_form``: only sign and threshold are fitted; ``probe``: weights are fitted by
            a solver; ``text``: the same, and the inputs are strings; ``trained``: weights are
            fitted by gradient descent.
        needs: Its needs of the loader.
        score: float64 ``[B]`` of a batch (closed form only).
        build: The module for a shape (all others).
        inputs: The module's positional arguments, taken from a batch (all others).
        chooses_token: True if fitting chooses a layer and a token; the module is then given the
            states of that token (see `wdsbench.detect.probe.token_states`).
        scales_weights: True if the module has a ``scale_weights`` for ``graph.edge_attr``.
        control: True if it sees none of the model's states; such detectors are part of every
            comparison on traces.
        reconstructs: True if the module returns reconstruction errors of images: it is fitted
            without labels, to all samples except those of label 1.
    """

    name: str
    kind: Kind
    needs: LoaderNeeds
    score: Callable[[Batch], NDArray[np.float64]] | None = None
    build: Callable[[DetectorShape], nn.Module] | None = None
    inputs: Callable[[Batch], tuple[Any, ...]] | None = None
    chooses_token: bool = False
    scales_weights: bool = False
    control: bool = False
    reconstructs: bool = False


def detector_spec(name: str) -> DetectorSpec:
    """Return the entry of ``name``; raise ValueError if there is none."""
    try:
        return _REGISTRY[name]
    except KeyError:
        near = difflib.get_close_matches(name, _REGISTRY, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"detector {name!r} is not one of {', '.join(_REGISTRY)}{hint}") from None


def _builder(module: str, name: str, **options: Any) -> Callable[[DetectorShape], nn.Module]:
    """Return a function that builds the class ``name`` of a module, which is imported only then."""

    def build(shape: DetectorShape) -> nn.Module:
        detector = getattr(importlib.import_module(f"wdsbench.detect.{module}"), name)
        built: nn.Module = detector(shape, **options)
        return built

    return build


def _hidden(batch: Batch) -> tuple[Tensor, ...]:
    assert batch.hidden is not None, "the loader was not asked for hidden states"
    return (batch.hidden,)


def _attention_features(batch: Batch) -> tuple[Tensor, ...]:
    from wdsbench.detect.attention import attention_features

    return (attention_features(batch),)


def _answers(batch: Batch) -> tuple[list[str], ...]:
    return (strings.answers(batch),)


def _questions(batch: Batch) -> tuple[list[str], ...]:
    return (strings.questions(batch),)


def _image(batch: Batch) -> tuple[Tensor, ...]:
    assert batch.image is not None, "the loader was not asked for images"
    return (batch.image,)


def _graph(batch: Batch) -> tuple[Tensor, ...]:
    graph = batch.graph
    return graph.x, graph.edge_index, graph.edge_attr, graph.ptr


def _union_graph(batch: Batch) -> tuple[Tensor, ...]:
    return (*_graph(batch), batch.prompt_length)


_STATES = LoaderNeeds(fields=("hidden",))
_LOGPROBS = LoaderNeeds(fields=("logprobs",))
# No states are read; every trace has a "last" token.
_SKETCHES = LoaderNeeds(fields=("sketch",), tokens="last", kinds=("sketch",))
_GRAPHS = LoaderNeeds(("hidden",), "all", "graph", kinds=("edges",))
_IMAGES = LoaderNeeds(("image",), layout="image", kinds=("image",))
# As for sketches, every trace has a "last" token.
_META = LoaderNeeds(("meta",), tokens="last")
_UNION_GRAPHS = LoaderNeeds(("hidden",), "all", "union-graph", kinds=("heads",))


def _probe(name: str, class_name: str) -> DetectorSpec:
    """Return the entry of a probe of one layer's state of one token."""
    build = _builder("probe", class_name)
    return DetectorSpec(name, "probe", _STATES, build=build, inputs=_hidden, chooses_token=True)


def _graphs(name: str, class_name: str) -> DetectorSpec:
    """Return the entry of a detector on a graph per layer."""
    build = _builder(name, class_name)
    return DetectorSpec(name, "trained", _GRAPHS, build=build, inputs=_graph, scales_weights=True)


def _charm(name: str, edges: Edges) -> DetectorSpec:
    """Return the entry of CHARM-lite or of a control: same data, same network, other edges."""
    build = _builder("charm", "CharmDetector", edges=edges)
    return DetectorSpec(name, "trained", _UNION_GRAPHS, build=build, inputs=_union_graph)


def _text(name: str, inputs: Callable[[Batch], tuple[list[str], ...]]) -> DetectorSpec:
    """Return the entry of a classifier of strings."""
    build = _builder("text", "TextClassifier")
    return DetectorSpec(name, "text", _META, build=build, inputs=inputs, control=True)


def _images(name: str, kind: Kind, class_name: str) -> DetectorSpec:
    """Return the entry of a detector on image patches."""
    build = _builder("images", class_name)
    return DetectorSpec(name, kind, _IMAGES, build=build, inputs=_image, reconstructs=True)


_REGISTRY: dict[str, DetectorSpec] = {
    spec.name: spec
    for spec in (
        DetectorSpec("length", "closed_form", LoaderNeeds(), score=baselines.length),
        DetectorSpec("logprob_mean", "closed_form", _LOGPROBS, score=baselines.logprob_mean),
        DetectorSpec("logprob_min", "closed_form", _LOGPROBS, score=baselines.logprob_min),
        _probe("probe_logistic", "LogisticProbe"),
        _probe("probe_mlp", "MLPProbe"),
        DetectorSpec(
            "attention_logistic",
            "probe",
            _SKETCHES,
            build=_builder("attention", "AttentionLogistic"),
            inputs=_attention_features,
        ),
        DetectorSpec(
            "lstm", "trained", _STATES, build=_builder("lstm", "LSTMDetector"), inputs=_hidden
        ),
        _graphs("gnn", "GNNDetector"),
        _graphs("gvae", "GVAEDetector"),
        _charm("charm", "kept"),
        _charm("charm_no_edges", "none"),
        _charm("charm_shuffled_edges", "shuffled"),
        _text("text_control", _answers),
        _text("question_control", _questions),
        DetectorSpec(
            "similarity_control", "closed_form", _META, score=strings.similarity, control=True
        ),
        _images("autoencoder", "trained", "ConvAutoencoder"),
        _images("pca", "probe", "PCADetector"),
    )
}

DETECTOR_NAMES: tuple[str, ...] = tuple(_REGISTRY)
#: Names of the detectors on images, of the controls of those on traces, and of all others.
IMAGE_DETECTORS = tuple(name for name, spec in _REGISTRY.items() if spec.reconstructs)
CONTROLS = tuple(name for name, spec in _REGISTRY.items() if spec.control)
TRACE_DETECTORS = tuple(
    name for name in DETECTOR_NAMES if name not in (*IMAGE_DETECTORS, *CONTROLS)
)
#: The control that sees the answer.
TEXT_CONTROL = "text_control"
