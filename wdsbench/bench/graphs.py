"""Data of case C: traces with an attention graph a layer, as shards, as ``.pt`` and in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.bench.data import LEAST_SHARDS, SEED, SHARDS_NAME, write_samples
from wdsbench.bench.part import WORKERS
from wdsbench.bench.traces import TraceShape
from wdsbench.files import atomic_file
from wdsbench.progress import Progress, no_progress
from wdsbench.records import LayerEdges
from wdsbench.shards.format.index import INDEX_NAME
from wdsbench.shards.format.members import edge_members
from wdsbench.shards.write.writer import MEGABYTE, DatasetWriter

PT_NAME = "graphs-pt"

#: Of each token's predecessors that become edges.
SHARE = 0.35

#: Weights are multiples of its inverse: float32 sums over up to 2^10 heads are exact in any order,
#: so that everybody's mean, and with it everybody's choice of edges, is the same.
STEPS = 1 << 14


@dataclass(frozen=True)
class GraphShape(TraceShape):
    """Traces ``[L, T, D]`` with a graph a layer."""

    def scaled(self, scale: float) -> GraphShape:
        """Return the same with a share of the samples: whole batches for every worker, so that
        all batches are alike and their rate means the same for all readers.
        """
        unit = self.batch_size * WORKERS
        return replace(self, samples=unit * max(1, int(self.samples * scale) // unit))


#: C: what a graph detector reads of a model of 32 layers whose states were reduced to 64 numbers.
GRAPHS = GraphShape("C", 320, 32, 64, 20, 80, 16)


@dataclass(frozen=True)
class GraphTrace:
    """One trace of the data.

    Attributes:
        hidden: float16 ``[L, T, D]``.
        edges: Of every layer.
    """

    hidden: NDArray[np.float16]
    edges: list[LayerEdges]


@lru_cache(maxsize=1)  # the writer asks for states and for edges
def graph_trace(shape: GraphShape, number: int) -> GraphTrace:
    """Return a trace, the same in every run; one random map stands for a layer's mean."""
    rng = np.random.default_rng([SEED, number])
    tokens = shape.tokens[number]
    states = rng.standard_normal((shape.layers, tokens, shape.features), np.float32)
    maps = causal_attention(rng, shape.layers, 1, tokens)
    index, bits, pointer = _core.mean_edges(list(maps), "top", SHARE)
    weight = bits.view(np.float16)
    edges = [
        LayerEdges(index[:, first:last], weight[first:last])
        for first, last in pairwise(pointer.tolist())
    ]
    return GraphTrace(states.astype(np.float16), edges)


def causal_attention(
    rng: np.random.Generator, layers: int, heads: int, tokens: int
) -> NDArray[np.float16]:
    """Return random maps ``[L, H, T, T]``: rows sum to about one, nothing above the diagonal."""
    weights = np.tril(rng.random((layers, heads, tokens, tokens), np.float32))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (np.round(weights * STEPS) / STEPS).astype(np.float16)


def make_graph_shards(shape: GraphShape, folder: Path, progress: Progress = no_progress) -> Path:
    """Make ``folder/shards`` where it is not there yet, and return it."""
    shards = folder / SHARDS_NAME
    if not (shards / INDEX_NAME).exists():
        # The states are most of it: enough to be cut into the least number of shards.
        megabytes = sum(shape.tokens) * shape.layers * shape.features * 2 / MEGABYTE
        write_samples(
            DatasetWriter(shards, shard_mb=megabytes / LEAST_SHARDS),
            progress(range(shape.samples), shape.samples, f"writing shards of {shape.name}"),
            lambda i: graph_trace(shape, i).hidden,
            lambda i: edge_members(graph_trace(shape, i).edges, shape.tokens[i]),
        )
    return shards


def make_graph_files(shape: GraphShape, folder: Path, progress: Progress = no_progress) -> Path:
    """Make ``folder/graphs-pt``, a file of L graphs for every trace, and return it."""
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
    """Return for every trace its L graphs."""
    numbers: Iterable[int] = range(shape.samples)
    wanted = progress(numbers, shape.samples, f"making graphs of {shape.name}")
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
        for states, edges in zip(trace.hidden, trace.edges, strict=True)
    ]
