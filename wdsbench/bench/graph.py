"""How fast are graph batches read from shards? Bound by memory: a ``memcpy`` of their bytes.

Part C: batches of 16 traces x 32 layers, one graph per layer. Rates count x (float32), edge_index
(int64) and edge_attr (float32). ``ours-t1``, ``ours-t2``, ``ours-w2`` are the public iterator with
shuffle, labels and ids; ``from-data-list`` and ``from-data-list-per-layer`` collate graphs that are
in memory, with one call per batch or per layer; ``webdataset-from-data-list`` decodes and collates
as the documentation shows, ``webdataset-numpy`` by hand, ``webdataset-tuned`` the same with torch
to widen; ``pyg-loader`` and ``pyg-loader-w2`` are PyG's own over one ``.pt`` per trace. Slow
readers without workers are stopped after a share of an epoch. A reader yields one epoch of lists of
``torch_geometric`` batches: one of all B * L graphs (graph = sample * L + layer), or L of B graphs.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from wdsbench.bench.ceiling import memcpy
from wdsbench.bench.graphs import (
    GRAPHS,
    SHARE,
    GraphShape,
    GraphTrace,
    data_list,
    graphs_in_memory,
    make_graph_files,
    make_graph_shards,
)
from wdsbench.bench.part import WORKERS, Part, Settings, loader_cases, rates_part
from wdsbench.bench.readers import batched, shuffled_samples
from wdsbench.bench.timing import Work, consumed_sizes
from wdsbench.records import EdgeLists
from wdsbench.shards.format.kinds import EDGES_INDEX, EDGES_POINTER, EDGES_WEIGHT, HIDDEN

#: Duration of a repeat of a slow reader.
SLOW_SECONDS = 1.5

#: A batch from PyG's workers arrives as some 350 tensors, each with its own descriptor.
LEAST_DESCRIPTORS = 8192


def graph_part(settings: Settings, shape: GraphShape = GRAPHS) -> Part:
    """Return the rates of all readers over ``shape``; missing data is created."""
    shape = shape.scaled(settings.scale)
    traces = graphs_in_memory(shape, settings.progress)
    batches = shape.samples // shape.batch_size
    batch_bytes = sum(graph_bytes(graphs) for graphs in traces) // batches
    tokens = f"{shape.shortest}..{shape.longest}"
    sizes = f"[{shape.layers}, {tokens}, {shape.features}], top {SHARE:.0%} edges"
    with _descriptors():
        return rates_part(
            shape,
            settings,
            _cases(shape, settings, traces, batch_bytes),
            f"{shape.samples:,} x {sizes}, batch {shape.batch_size} ({batch_bytes / 1e6:.1f} MB)",
            measure="batches_per_s",
            unit="batches/s",
            facts={"share": SHARE, "batch_bytes": batch_bytes},
        )


def graph_bytes(graphs: Iterable[Any]) -> int:
    """Return the bytes of the nodes, edges and weights of graphs or unions of them."""
    return sum(
        tensor.numel() * tensor.element_size()
        for graph in graphs
        for tensor in (graph.x, graph.edge_index, graph.edge_attr)
    )


def _cases(
    shape: GraphShape, settings: Settings, traces: list[list[Any]], batch_bytes: int
) -> dict[str, Callable[[], Work]]:
    folder = settings.data / shape.folder_name
    shards = make_graph_shards(shape, folder, settings.progress)
    pt = make_graph_files(shape, folder, settings.progress)
    batch, sizes = shape.batch_size, (shape.layers, shape.features)

    def whole(batches: Iterable[Graphs]) -> Work:
        return _consumed(batches, shape)

    def share(batches: Iterable[Graphs]) -> Work:
        return _consumed(batches, shape, SLOW_SECONDS)

    random = torch.Generator().manual_seed(0)
    files, files_by_workers = pyg_loader(pt, batch), pyg_loader(pt, batch, WORKERS)
    return {
        "memcpy": memcpy(batch_bytes),
        **loader_cases(
            shards,
            batch,
            lambda batches: whole([batch.graph] for batch in batches),
            layout="graph",
        ),
        "from-data-list": lambda: share(from_data_list(traces, batch, random)),
        "from-data-list-per-layer": lambda: share(from_data_list_per_layer(traces, batch, random)),
        "webdataset-from-data-list": lambda: share(webdataset_from_data_list(shards, batch)),
        "webdataset-numpy": lambda: share(webdataset_arrays(shards, batch, *sizes)),
        "webdataset-tuned": lambda: share(
            webdataset_arrays(shards, batch, *sizes, widened_by_torch)
        ),
        "pyg-loader": lambda: share(files),
        # Batches that workers prefetched would count towards their next repeat: no early stop.
        "pyg-loader-w2": lambda: whole(files_by_workers),
    }


def _consumed(
    batches: Iterable[Graphs], shape: GraphShape, most_seconds: float | None = None
) -> Work:
    sizes = (
        (sum(len(graph.ptr) - 1 for graph in graphs) // shape.layers, graph_bytes(graphs))
        for graphs in batches
    )
    return consumed_sizes(sizes, shape.samples, most_seconds=most_seconds)


@contextmanager
def _descriptors() -> Iterator[None]:
    """Raise the limit of open files for PyG's workers (1,024 are too few), or make torch share
    memory by name if the system does not allow it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sharing: Any = torch.multiprocessing  # without types
    strategy = sharing.get_sharing_strategy()
    try:
        if _too_few(hard):
            sharing.set_sharing_strategy("file_system")
        elif _too_few(soft):
            resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_DESCRIPTORS, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        sharing.set_sharing_strategy(strategy)


def _too_few(limit: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < LEAST_DESCRIPTORS


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
            graphs += data_list(GraphTrace(hidden, EdgeLists(index, weight, pointer)))
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
    text = int.from_bytes(member[NPY_LENGTH_AT:NPY_TEXT_AT], "little")
    return np.frombuffer(member, dtype, -1, NPY_TEXT_AT + text)
