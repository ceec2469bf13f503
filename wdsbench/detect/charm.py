"""CHARM-lite: messages over one graph per trace whose edges carry the attention of all layers and
heads; once per batch over the union of traces.

Source: Frasca et al., "Neural message-passing on attention graphs for hallucination detection"
    (2025): tokens are nodes with their states, edges are vectors of thresholded attention values,
    edges between prompt tokens are left out. What is "lite": the states of all layers are projected
    to one node state, there are two rounds, and the readout is fixed.

Two controls measure the value of the edges. Both are the same network with as many weights:

- no edges: every mean over messages is zero;
- shuffled edges: every token has as many incoming edges and every trace the same edge vectors, but
  sources and vectors are permuted; see `shuffle_edges`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from wdsbench.detect.registry import DetectorShape
from wdsbench.detect.scale import Standardise
from wdsbench.detect.union import graph_of_nodes, group_mean

Edges = Literal["kept", "none", "shuffled"]


class EdgeVectorRound(nn.Module):
    """One round of messages ``ReLU(source + e) + gate * source * e`` with ``e = Linear(edge
    vector)``, their mean over a token's incoming edges, an update of two layers, a residual and
    LayerNorm.

    The second term weights the source state by attention. On traces whose label determines which
    tokens are attended to strongly, the first improvement took 6 to 11 epochs without it and 2 to 4
    with it. A second Linear for the weights was no better at twice the cost; with LayerNorm over
    edge vectors nothing was learnt.
    """

    def __init__(self, hidden: int, num_channels: int) -> None:
        super().__init__()
        self.edge = nn.Linear(num_channels, hidden)
        self.gate = nn.Parameter(torch.ones(hidden))
        self.update = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
        )
        self.norm = nn.LayerNorm(hidden)

    def forward(self, nodes: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Return new states, float32 ``[N, hidden]``; arguments as in `CharmDetector`."""
        source = nodes.index_select(0, edge_index[0])
        edge = self.edge(edge_attr)
        messages = torch.relu(source + edge) + self.gate * source * edge
        received = group_mean(messages, edge_index[1], nodes.shape[0])
        states: Tensor = self.norm(nodes + self.update(torch.cat([nodes, received], dim=-1)))
        return states


class CharmDetector(nn.Module):
    """Two rounds of messages over each trace's union graph; the mean over its answer tokens and its
    last token are read out.

    The states of a token are projected by one matrix for all layers and joined by another: L * D
    inputs at once would be millions of weights for a few thousand traces. Edge vectors are C = L *
    H wide.

    Args:
        shape: Sizes; ``depth`` is not used.
        edges: ``"kept"``, or one of the controls ``"none"`` and ``"shuffled"``.

    Raises:
        DetectorError: No attention heads are stored.
    """

    def __init__(self, shape: DetectorShape, edges: Edges) -> None:
        super().__init__()
        shape.require_heads()
        hidden, channels = shape.hidden, shape.num_layers * shape.num_heads
        self.edges = edges
        self.scale = Standardise(shape.num_layers, shape.num_features)
        self.project = nn.Linear(shape.num_features, hidden)
        self.join_layers = nn.Sequential(
            nn.Flatten(), nn.Linear(shape.num_layers * hidden, hidden), nn.LayerNorm(hidden)
        )
        self.first = EdgeVectorRound(hidden, channels)
        self.second = EdgeVectorRound(hidden, channels)
        self.readout = nn.Sequential(
            nn.Dropout(shape.dropout),
            nn.Linear(2 * hidden, hidden),
            nn.ReLU(),
            nn.Dropout(shape.dropout),
            nn.Linear(hidden, 1),
        )

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, ptr: Tensor, prompt_length: Tensor
    ) -> Tensor:
        """Return logits float32 ``[B]`` of B traces.

        Args:
            x: float32 ``[N, L, D]``: states of all tokens of all traces.
            edge_index: int64 ``[2, E]``: row 0 the attended token, row 1 the attending one.
            edge_attr: float32 ``[E, C]``: thresholded attention values.
            ptr: int64 ``[B + 1]``: first token of each trace.
            prompt_length: int64 ``[B]``: tokens of each prompt, known. A trace without answer
                tokens has a mean of zeros.
        """
        assert bool((prompt_length >= 0).all()), "the loader gives no unknown prompt length"
        trace = graph_of_nodes(ptr, x.shape[0])
        if self.edges == "none":
            edge_index, edge_attr = edge_index[:, :0], edge_attr[:0]
        elif self.edges == "shuffled":
            edge_index, edge_attr = shuffle_edges(edge_index, edge_attr, ptr)
        nodes = self.join_layers(self.project(self.scale(x)))
        nodes = self.first(nodes, edge_index, edge_attr)
        nodes = self.second(nodes, edge_index, edge_attr)

        position = torch.arange(x.shape[0], device=x.device) - ptr[trace]
        answer = torch.nonzero(position >= prompt_length[trace]).flatten()
        mean = group_mean(nodes.index_select(0, answer), trace[answer], ptr.numel() - 1)
        logits: Tensor = self.readout(torch.cat([mean, nodes[ptr[1:] - 1]], dim=-1)).squeeze(-1)
        return logits


def shuffle_edges(edge_index: Tensor, edge_attr: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor]:
    """Return shuffled ``edge_index`` and ``edge_attr``.

    The number of edges into every token and the edge vectors of every trace do not change. Each
    source is drawn uniformly from the tokens before its target (edges may coincide), and the
    vectors are permuted among the edges of their trace.

    The result depends only on the trace (a hash of its edges and values is the seed), so it is the
    same in every epoch, batch and process and on every device. A permutation that depends on sizes
    alone would be the same for all traces of a size, and a detector could learn to undo it.

    Args:
        edge_index: int64 ``[2, E]``, sources before their targets.
        edge_attr: float ``[E, C]``, of float32 values.
        ptr: int64 ``[B + 1]``.
    """
    num_traces = ptr.numel() - 1
    trace = torch.searchsorted(ptr, edge_index[1].contiguous(), right=True) - 1
    first = ptr[trace]
    source, target = edge_index[0] - first, edge_index[1] - first
    place = _mix(_mix(source) + target)
    bits = edge_attr.float().contiguous().view(torch.int32).sum(dim=1, dtype=torch.int64)
    content = ptr.new_zeros(num_traces).index_add(0, trace, _mix(place + bits))
    seed = _mix(content)[trace]

    drawn_source = (_mix(place + seed) & _POSITIVE) % target.clamp(min=1)
    by_chance = torch.argsort(_mix(place ^ seed), stable=True)
    by_chance = by_chance[torch.argsort(trace[by_chance], stable=True)]
    in_order = torch.argsort(trace, stable=True)
    drawn_from = torch.empty_like(in_order)
    drawn_from[in_order] = by_chance
    return torch.stack([first + drawn_source, edge_index[1]]), edge_attr[drawn_from]


_POSITIVE = 2**63 - 1
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def _mix(values: Tensor) -> Tensor:
    """Return int64 ``values`` hashed one by one; integer arithmetic, the same on every device.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), SplitMix64.
    """
    values = values + _STEP
    values = (values ^ _shifted(values, 30)) * _FACTORS[0]
    values = (values ^ _shifted(values, 27)) * _FACTORS[1]
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Return ``values`` shifted right without their sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
