"""A variational autoencoder of each layer's attention graph, then an LSTM over the layers' latents;
once per batch over the union of samples and layers.

    states -> GINE x 2 -> pool -> mean, log-variance -> latent -> LSTM over layers -> logit
                                                          |-> attention weights, pooled states

Training adds a penalty to the cross-entropy: the reconstruction error of the graph's attention
weights and states, and the divergence of the latent from a standard normal distribution. Unlike
`wdsbench.detect.gnn` it pools all nodes, so both rounds run over all edges.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from wdsbench.detect.gnn import AttentionRounds
from wdsbench.detect.lstm import LayerLSTM
from wdsbench.detect.registry import DetectorShape
from wdsbench.detect.union import graph_of_nodes, group_mean, require_whole_samples

# Beyond these a latent is exact, or pure noise, in float32; exp() of an unbounded log-variance
# overflows in the first steps from some initial weights.
LOG_VARIANCE_RANGE = (-8.0, 4.0)
# Weights of the terms of the penalty.
RECONSTRUCTION_WEIGHT = 0.1
DIVERGENCE_WEIGHT = 0.01


class Encoded(NamedTuple):
    """Output of the encoder for a batch of G graphs.

    Attributes:
        nodes: float32 ``[N, hidden]``: projected states before any message, which do not depend
            on the attention weights.
        graph_index: int64 ``[N]``: the graph of each node.
        pooled: float32 ``[G, 2 * D]``: mean of the graph's standardised states, and its last one.
        mean: float32 ``[G, latent]``, as is ``log_variance``.
    """

    nodes: Tensor
    graph_index: Tensor
    pooled: Tensor
    mean: Tensor
    log_variance: Tensor


class GVAEDetector(AttentionRounds):
    """Variational graph autoencoder per layer, LSTM over the layers' latents.

    Latents are half as wide as node states. Evaluation uses their means, so scores are
    deterministic.
    """

    def __init__(self, shape: DetectorShape) -> None:
        super().__init__(shape)
        hidden = shape.hidden
        self.num_latents = max(1, hidden // 2)
        self.to_mean = nn.Linear(2 * hidden, self.num_latents)
        self.to_log_variance = nn.Linear(2 * hidden, self.num_latents)
        self.over_layers = LayerLSTM(self.num_latents, shape)
        self.attended = nn.Linear(hidden, hidden)
        self.attending = nn.Linear(hidden, hidden)
        self.bend = nn.Linear(self.num_latents, hidden)
        self.tell_states = nn.Sequential(
            nn.Linear(self.num_latents, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2 * shape.num_features),
        )

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        ptr: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Return logits float32 ``[B]`` of the graphs that `wdsbench.detect.gnn.GNNDetector` takes.

        ``noise``: float32 ``[B * L, latent]``, standard normal; None: drawn in training, none in
        evaluation.
        """
        encoded = self._encode(x, edge_index, edge_attr, ptr)
        return self._logits(self._latent(encoded, noise))

    def forward_with_penalty(
        self, *graphs: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (logits, penalty), float32 ``[B]`` each; arguments as in `forward`.

        A sample's penalty is the mean over its layers of the weighted reconstruction and KL terms,
        each of them a mean over edges, features or latents: neither batch size nor the length of a
        trace changes its weight.
        """
        _, edge_index, edge_attr, _ = graphs
        encoded = self._encode(*graphs)
        latent = self._latent(encoded, noise)
        error = self._weights_error(encoded, latent, edge_index, edge_attr)
        error = error + self._states_error(encoded, latent)
        per_graph = RECONSTRUCTION_WEIGHT * error + DIVERGENCE_WEIGHT * divergence(encoded)
        return self._logits(latent), per_graph.view(-1, self.num_layers).mean(dim=1)

    def _encode(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, ptr: Tensor) -> Encoded:
        require_whole_samples(ptr, self.num_layers)
        num_graphs = ptr.numel() - 1
        graph_index = graph_of_nodes(ptr, x.shape[0])
        last = ptr[1:] - 1
        raw = self.scale.rows(x, graph_index % self.num_layers)
        nodes = self.project(raw)
        weights = self.scale_weights(edge_attr)
        states = self.first(nodes, nodes, edge_index, weights)
        states = self.second(states, states, edge_index, weights)

        def pool(values: Tensor) -> Tensor:
            return torch.cat([group_mean(values, graph_index, num_graphs), values[last]], dim=-1)

        readout = pool(states)
        log_variance = self.to_log_variance(readout).clamp(*LOG_VARIANCE_RANGE)
        return Encoded(nodes, graph_index, pool(raw), self.to_mean(readout), log_variance)

    def _latent(self, encoded: Encoded, noise: Tensor | None) -> Tensor:
        if noise is None:
            if not self.training:
                return encoded.mean
            noise = torch.randn_like(encoded.mean)
        return encoded.mean + noise * (0.5 * encoded.log_variance).exp()

    def _logits(self, latent: Tensor) -> Tensor:
        logits: Tensor = self.over_layers(latent.view(-1, self.num_layers, self.num_latents))
        return logits

    def _weights_error(
        self, encoded: Encoded, latent: Tensor, edge_index: Tensor, edge_attr: Tensor
    ) -> Tensor:
        """Return each graph's cross-entropy of its attention weights, ``[G]``; 0 without edges.

        A weight is predicted from both tokens' states before any message and the graph's latent:
        the latent has to encode what the states do not determine.
        """
        source, target = edge_index[0], edge_index[1]
        attending = self.attending(encoded.nodes) + self.bend(latent)[encoded.graph_index]
        attended = self.attended(encoded.nodes)
        product = attending.index_select(0, target) * attended.index_select(0, source)
        errors = functional.binary_cross_entropy_with_logits(
            product.sum(dim=-1) / math.sqrt(attended.shape[-1]),
            edge_attr.flatten().clamp(0, 1),
            reduction="none",
        )
        return group_mean(errors, encoded.graph_index[target], latent.shape[0])

    def _states_error(self, encoded: Encoded, latent: Tensor) -> Tensor:
        """Return each graph's error of its pooled standardised states, ``[G]``.

        Huber loss, because attention sinks are up to ten standard deviations from the mean.
        """
        predicted = self.tell_states(latent)
        return functional.smooth_l1_loss(predicted, encoded.pooled, reduction="none").mean(dim=-1)


def divergence(encoded: Encoded) -> Tensor:
    """Return each graph's KL divergence from a standard normal, mean over latents, ``[G]``.

    Source: Kingma, Welling, "Auto-encoding variational Bayes" (2014), appendix B.
    """
    mean, log_variance = encoded.mean, encoded.log_variance
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean(dim=-1)
