"""Competing readers of graph batches: common practice, and code tuned by hand.

Each yields one epoch of batches; a batch is a list of ``torch_geometric`` batches: one of all B * L
graphs (graph = sample * L + layer), or L of B graphs each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from wdsbench.bench.graphs import GraphTrace, data_list
from wdsbench.bench.readers import batched, shuffled_samples
from wdsbench.records import LayerEdges
from wdsbench.shards.format.kinds import EDGES_INDEX, EDGES_POINTER, EDGES_WEIGHT, HIDDEN

Graphs = list[Any]
Widened = Callable[[Sequence[NDArray[np.float16]]], NDArray[np.float32]]

#: npy 1.0: magic and version, then two bytes with the length of the header text.
NPY_LENGTH_AT = 8
NPY_TEXT_AT = 10


def widened_by_numpy(parts: Sequence[NDArray[np.float16]]) -> NDArray[np.float32]:
    """Return the concatenated parts as float32, in one single-threaded NumPy call."""
    return np.concatenate(parts, dtype=np.float32)


def widened_by_torch(parts: Sequence[NDArray[np.float16]]) -> NDArray[np.float32]:
    """Return the concatenated parts as float32, widened by torch on several threads."""
    floats: NDArray[np.float32] = torch.from_numpy(np.concatenate(parts)).float().numpy()
    return floats


def from_data_list(
    traces: Sequence[list[Any]], batch_size: int, random: torch.Generator
) -> Iterator[Graphs]:
    """Yield batches of graphs in memory, with one call for all graphs of a batch."""
    for rows in _shuffled(len(traces), batch_size, random):
        yield [Batch.from_data_list([graph for row in rows for graph in traces[row]])]


def from_data_list_per_layer(
    traces: Sequence[list[Any]], batch_size: int, random: torch.Generator
) -> Iterator[Graphs]:
    """Yield batches of graphs in memory, with one call for each layer."""
    for rows in _shuffled(len(traces), batch_size, random):
        yield per_layer([traces[row] for row in rows])


def per_layer(traces: Sequence[list[Any]]) -> Graphs:
    """Return L unions of the traces' graphs."""
    return [Batch.from_data_list(list(graphs)) for graphs in zip(*traces, strict=True)]


def webdataset_from_data_list(shards: Path, batch_size: int) -> Iterator[Graphs]:
    """Yield batches as webdataset's and PyG's documentation shows: decode, then collate."""
    names = (HIDDEN, EDGES_INDEX, EDGES_POINTER, EDGES_WEIGHT)
    samples = shuffled_samples(shards).decode().to_tuple(*names)
    for batch in samples.batched(batch_size, collation_fn=None):
        graphs: list[Any] = []
        for hidden, index, pointer, weight in batch:
            edges = [
                LayerEdges(index[:, first:last], weight[first:last])
                for first, last in pairwise(pointer.tolist())
            ]
            graphs += data_list(GraphTrace(hidden, edges))
        yield [Batch.from_data_list(graphs)]


def webdataset_arrays(
    shards: Path,
    batch_size: int,
    layers: int,
    features: int,
    widened: Widened = widened_by_numpy,
) -> Iterator[Graphs]:
    """Yield batches collated by hand: views of the members' bytes, one array per field.

    ``widened`` concatenates float16 parts and returns float32.
    """
    for samples in batched(shuffled_samples(shards), batch_size):
        yield [_collated(samples, layers, features, widened)]


class GraphFiles(Dataset[list[Any]]):
    """The L graphs of a trace, from one ``.pt`` file per trace."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*.pt"))

    def __len__(self) -> int:
        """Return the number of traces."""
        return len(self._files)

    def __getitem__(self, number: int) -> list[Any]:
        """Return L ``Data``; unpickled, since the benchmark wrote the file itself."""
        graphs: list[Any] = torch.load(self._files[number], weights_only=False)
        return graphs


def pyg_loader(folder: Path, batch_size: int, workers: int = 0) -> Any:
    """Return PyG's loader of shuffled batches with persistent workers; it collates per layer."""
    return DataLoader(
        GraphFiles(folder),
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def _shuffled(samples: int, batch_size: int, random: torch.Generator) -> Iterator[list[int]]:
    for rows in torch.split(torch.randperm(samples, generator=random), batch_size):
        yield rows.tolist()


def _collated(
    samples: Sequence[dict[str, bytes]], layers: int, features: int, widened: Widened
) -> Any:
    hidden = [_payload(sample[HIDDEN], "<f2").reshape(-1, features) for sample in samples]
    pointers = [_payload(sample[EDGES_POINTER], "<u4").astype(np.int64) for sample in samples]
    weights = [_payload(sample[EDGES_WEIGHT], "<f2") for sample in samples]
    indices = [
        _index(sample[EDGES_INDEX], len(weight))
        for sample, weight in zip(samples, weights, strict=True)
    ]
    node_counts = np.repeat([len(states) // layers for states in hidden], layers)
    edge_counts = np.concatenate([np.diff(pointer) for pointer in pointers])
    ptr = np.concatenate([[0], np.cumsum(node_counts)])

    edge_index = np.concatenate(indices, axis=1, dtype=np.int64)
    edge_index += np.repeat(ptr[:-1], edge_counts)
    return Data(
        x=torch.from_numpy(widened(hidden)),
        edge_index=torch.from_numpy(edge_index),
        edge_attr=torch.from_numpy(widened(weights))[:, None],
        batch=torch.from_numpy(np.repeat(np.arange(len(node_counts)), node_counts)),
        ptr=torch.from_numpy(ptr),
    )


def _index(member: bytes, edges: int) -> NDArray[Any]:
    """Return ``[2, edges]`` in the stored width of 1, 2 or 4 bytes."""
    raw = _payload(member, "<u1")
    return raw.view(f"<u{raw.size // (2 * edges)}" if edges else "<u1").reshape(2, edges)


def _payload(member: bytes, dtype: str) -> NDArray[Any]:
    """Return the elements of an npy member as a flat view."""
    text = int.from_bytes(member[NPY_LENGTH_AT:NPY_TEXT_AT], "little")
    return np.frombuffer(member, dtype, -1, NPY_TEXT_AT + text)
