"""Data of case C: traces with one attention graph per layer, as shards, ``.pt`` and in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.bench.data import SEED, TraceShape, make_dataset
from wdsbench.bench.part import WORKERS
from wdsbench.files import atomic_file
from wdsbench.progress import Progress, no_progress
from wdsbench.records import EdgeLists
from wdsbench.shards.format.members import edge_members

PT_NAME = "graphs-pt"

#: Share of each token's predecessors that become edges.
SHARE = 0.35

#: Weights are multiples of 1 / STEPS: float32 sums over up to 2^10 heads are then exact in any
#: order, so that all implementations choose the same edges.
STEPS = 1 << 14


@dataclass(frozen=True)
class GraphShape(TraceShape):
    """Traces ``[L, T, D]`` with one graph per layer."""

    def scaled(self, scale: float) -> Self:
        """Return this case with a share of the samples: whole batches for every worker, so that
        batch rates are comparable between readers.
        """
        unit = self.batch_size * WORKERS
        return replace(self, samples=unit * max(1, int(self.samples * scale) // unit))


#: C: input of a graph detector for a model of 32 layers with states reduced to 64 features.
GRAPHS = GraphShape("C", 320, 32, 64, 16, 20, 80)


@dataclass(frozen=True)
class GraphTrace:
    """One trace of the data."""

    hidden: NDArray[np.float16]  # ``[L, T, D]``
    edges: EdgeLists  # one list per layer


@lru_cache(maxsize=1)  # states and edges are asked for separately
def graph_trace(shape: GraphShape, number: int) -> GraphTrace:
    """Return a trace, the same in every run; one random map serves as a layer's mean map."""
    rng = np.random.default_rng([SEED, number])
    tokens = shape.tokens[number]
    states = rng.standard_normal((shape.layers, tokens, shape.features), np.float32)
    maps = causal_attention(rng, shape.layers, 1, tokens)
    index, bits, pointer = _core.mean_edges(list(maps), "top", SHARE)
    edges = EdgeLists(index, bits.view(np.float16), pointer)
    return GraphTrace(states.astype(np.float16), edges)


def causal_attention(
    rng: np.random.Generator, layers: int, heads: int, tokens: int
) -> NDArray[np.float16]:
    """Return random maps ``[L, H, T, T]``: rows sum to about one, nothing above the diagonal."""
    weights = np.tril(rng.random((layers, heads, tokens, tokens), np.float32))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (np.round(weights * STEPS) / STEPS).astype(np.float16)


def make_graph_shards(shape: GraphShape, folder: Path, progress: Progress = no_progress) -> Path:
    """Create ``folder/shards`` unless it exists, and return its path."""
    return make_dataset(
        folder,
        shape,
        lambda i: graph_trace(shape, i).hidden,
        lambda i: edge_members("edges", graph_trace(shape, i).edges, shape.tokens[i]),
        progress=progress,
    )


def make_graph_files(shape: GraphShape, folder: Path, progress: Progress = no_progress) -> Path:
    """Create ``folder/graphs-pt``, one file of L graphs per trace, and return its path."""
    import torch

    pt = folder / PT_NAME
    pt.mkdir(parents=True, exist_ok=True)
    for i in progress(range(shape.samples), shape.samples, f"writing .pt files of {shape.name}"):
        path = pt / f"trace-{i:05d}.pt"
        if not path.exists():
            with atomic_file(path) as file:
                torch.save(data_list(graph_trace(shape, i)), file)
    return pt


def graphs_in_memory(shape: GraphShape, progress: Progress = no_progress) -> list[list[Any]]:
    """Return the L graphs of every trace."""
    wanted = progress(range(shape.samples), shape.samples, f"making graphs of {shape.name}")
    return [data_list(graph_trace(shape, i)) for i in wanted]


def data_list(trace: GraphTrace) -> list[Any]:
    """Return L ``torch_geometric.data.Data``: x float32, edge_index int64, edge_attr float32."""
    import torch
    from torch_geometric.data import Data

    return [
        Data(
            x=torch.from_numpy(states).float(),
            edge_index=torch.from_numpy(edges.index.astype(np.int64)),
            edge_attr=torch.from_numpy(edges.weight).float()[:, None],
        )
        for states, edges in zip(
            trace.hidden, map(trace.edges.part, range(len(trace.hidden))), strict=True
        )
    ]
