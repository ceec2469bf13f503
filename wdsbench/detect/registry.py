"""Names of the detectors: how each is built, what it reads, how it is fitted.

Importing this module does not import torch, so a command line can list the names.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from wdsbench.errors import DetectorError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from wdsbench.detect.charm import Edges
    from wdsbench.records import Batch

Kind = Literal["closed_form", "probe", "trained"]


@dataclass(frozen=True)
class LoaderNeeds:
    """What a detector needs of the loader.

    Attributes:
        fields: ``fields=`` of the loader.
        tokens: ``tokens=`` of the loader.
        layout: ``layout=`` of the loader.
        kinds: Names of the member kinds that every trace must have.
    """

    fields: tuple[str, ...] = ()
    tokens: str | int = "last_answer"
    layout: str = "stack"
    kinds: tuple[str, ...] = ()

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
    """Sizes a detector with weights is built from; written beside its weights.

    Attributes:
        num_layers: L, layers read from each trace.
        num_features: D, width of a state.
        hidden: Width inside the detector.
        depth: LSTM layers.
        dropout: Dropout in training.
        num_heads: H, attention heads per layer; 0 if nothing is stored per head.
    """

    num_layers: int
    num_features: int
    hidden: int = 64
    depth: int = 2
    dropout: float = 0.3
    num_heads: int = 0


@dataclass(frozen=True)
class DetectorSpec:
    """One entry of the registry.

    Attributes:
        name: The detector's name everywhere (``--detector``, JSON, plots).
        kind: ``closed_form``: only sign and threshold are fitted; ``probe``: weights are fitted by
            a solver; ``trained``: weights are fitted by gradient descent.
        needs: Its needs of the loader.
        score: float64 ``[B]`` of a batch (closed form only).
        build: The module for a shape (all others).
        inputs: The module's positional arguments, taken from a batch (all others).
        chooses_token: True if fitting chooses a layer and a token; the module is then given the
            states of that token (see `wdsbench.detect.probe.token_states`).
        scales_weights: True if the module has a ``scale_weights`` for ``graph.edge_attr``.
    """

    name: str
    kind: Kind
    needs: LoaderNeeds
    score: Callable[[Batch], NDArray[np.float64]] | None = None
    build: Callable[[DetectorShape], nn.Module] | None = None
    inputs: Callable[[Batch], tuple[Tensor, ...]] | None = None
    chooses_token: bool = False
    scales_weights: bool = False


def detector_spec(name: str) -> DetectorSpec:
    """Return the entry of ``name``.

    Raises:
        ValueError: There is no such detector.
    """
    try:
        return _REGISTRY[name]
    except KeyError:
        near = difflib.get_close_matches(name, _REGISTRY, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"detector {name!r} is not one of {', '.join(_REGISTRY)}{hint}") from None


def _length(batch: Batch) -> NDArray[np.float64]:
    from wdsbench.detect import baselines

    return baselines.length(batch)


def _logprob_mean(batch: Batch) -> NDArray[np.float64]:
    from wdsbench.detect import baselines

    return baselines.logprob_mean(batch)


def _logprob_min(batch: Batch) -> NDArray[np.float64]:
    from wdsbench.detect import baselines

    return baselines.logprob_min(batch)


def _build_probe_logistic(shape: DetectorShape) -> nn.Module:
    from wdsbench.detect.probe import LogisticProbe

    return LogisticProbe(shape.num_features, num_layers=shape.num_layers)


def _build_probe_mlp(shape: DetectorShape) -> nn.Module:
    from wdsbench.detect.probe import MLPProbe

    return MLPProbe(shape.num_features, hidden=shape.hidden, dropout=shape.dropout)


def _build_attention_logistic(shape: DetectorShape) -> nn.Module:
    from wdsbench.detect.attention import AttentionLogistic

    _require_heads(shape)
    return AttentionLogistic(num_layers=shape.num_layers, num_heads=shape.num_heads)


def _build_lstm(shape: DetectorShape) -> nn.Module:
    from wdsbench.detect.lstm import LSTMDetector

    return LSTMDetector(shape.num_features, **_over_layers(shape))


def _build_gnn(shape: DetectorShape) -> nn.Module:
    from wdsbench.detect.gnn import GNNDetector

    return GNNDetector(shape.num_features, **_over_layers(shape))


def _build_gvae(shape: DetectorShape) -> nn.Module:
    from wdsbench.detect.gvae import GVAEDetector

    return GVAEDetector(shape.num_features, **_over_layers(shape))


def _over_layers(shape: DetectorShape) -> dict[str, Any]:
    """Return the keyword arguments of detectors that end in an LSTM over layers."""
    names = ("num_layers", "hidden", "depth", "dropout")
    return {name: getattr(shape, name) for name in names}


def _require_heads(shape: DetectorShape) -> None:
    if shape.num_heads < 1:
        raise DetectorError(
            f"num_heads is {shape.num_heads}; must be at least 1, the number of attention heads"
        )


def _build_charm(shape: DetectorShape, edges: Edges) -> nn.Module:
    from wdsbench.detect.charm import CharmDetector

    _require_heads(shape)
    return CharmDetector(
        shape.num_features,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        hidden=shape.hidden,
        dropout=shape.dropout,
        edges=edges,
    )


def _hidden(batch: Batch) -> tuple[Tensor, ...]:
    assert batch.hidden is not None, "the loader was not asked for hidden states"
    return (batch.hidden,)


def _attention_features(batch: Batch) -> tuple[Tensor, ...]:
    from wdsbench.detect.attention import attention_features

    return (attention_features(batch),)


def _graph(batch: Batch) -> tuple[Tensor, ...]:
    graph = batch.graph
    return graph.x, graph.edge_index, graph.edge_attr, graph.ptr


def _union_graph(batch: Batch) -> tuple[Tensor, ...]:
    return (*_graph(batch), batch.prompt_length)


_STATES = LoaderNeeds(fields=("hidden",))
_LOGPROBS = LoaderNeeds(fields=("logprobs",))
# No states are read; every trace has a "last" token.
_SKETCHES = LoaderNeeds(fields=("sketch",), tokens="last", kinds=("sketch",))
_GRAPHS = LoaderNeeds(
    fields=("hidden",),
    tokens="all",
    layout="graph",
    kinds=("edges",),
)
_UNION_GRAPHS = LoaderNeeds(
    fields=("hidden",),
    tokens="all",
    layout="union-graph",
    kinds=("heads",),
)


def _probe(name: str, build: Callable[[DetectorShape], nn.Module]) -> DetectorSpec:
    """Return the entry of a probe of one layer's state of one token."""
    return DetectorSpec(name, "probe", _STATES, build=build, inputs=_hidden, chooses_token=True)


def _graphs(name: str, build: Callable[[DetectorShape], nn.Module]) -> DetectorSpec:
    """Return the entry of a detector on a graph per layer."""
    return DetectorSpec(name, "trained", _GRAPHS, build=build, inputs=_graph, scales_weights=True)


def _charm(name: str, edges: Edges) -> DetectorSpec:
    """Return the entry of CHARM-lite or of a control: same data, same network, other edges."""
    build = partial(_build_charm, edges=edges)
    return DetectorSpec(name, "trained", _UNION_GRAPHS, build=build, inputs=_union_graph)


_REGISTRY: dict[str, DetectorSpec] = {
    spec.name: spec
    for spec in (
        DetectorSpec("length", "closed_form", LoaderNeeds(), score=_length),
        DetectorSpec("logprob_mean", "closed_form", _LOGPROBS, score=_logprob_mean),
        DetectorSpec("logprob_min", "closed_form", _LOGPROBS, score=_logprob_min),
        _probe("probe_logistic", _build_probe_logistic),
        _probe("probe_mlp", _build_probe_mlp),
        DetectorSpec(
            "attention_logistic",
            "probe",
            _SKETCHES,
            build=_build_attention_logistic,
            inputs=_attention_features,
        ),
        DetectorSpec("lstm", "trained", _STATES, build=_build_lstm, inputs=_hidden),
        _graphs("gnn", _build_gnn),
        _graphs("gvae", _build_gvae),
        _charm("charm", "kept"),
        _charm("charm_no_edges", "none"),
        _charm("charm_shuffled_edges", "shuffled"),
    )
}

DETECTOR_NAMES: tuple[str, ...] = tuple(_REGISTRY)
