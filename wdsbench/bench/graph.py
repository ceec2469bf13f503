"""How fast are graph batches read from shards? Bound by memory: a ``memcpy`` of their bytes.

Part C: batches of 16 traces x 32 layers, one graph per layer. Rates count x (float32), edge_index
(int64) and edge_attr (float32). ``ours-t1``, ``ours-t2``, ``ours-w2`` are the public iterator with
shuffle, labels and ids; ``from-data-list`` and ``from-data-list-per-layer`` collate graphs that are
in memory, with one call per batch or per layer; ``webdataset-from-data-list`` decodes and collates
as the documentation shows, ``webdataset-numpy`` by hand, ``webdataset-tuned`` the same with torch
to widen; ``pyg-loader`` and ``pyg-loader-w2`` are PyG's own over one ``.pt`` per trace. Slow
readers without workers are stopped after a share of an epoch.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from wdsbench.bench import graph_readers as readers
from wdsbench.bench.ceiling import memcpy
from wdsbench.bench.graph_readers import Graphs
from wdsbench.bench.graphs import (
    GRAPHS,
    SHARE,
    GraphShape,
    graphs_in_memory,
    make_graph_files,
    make_graph_shards,
)
from wdsbench.bench.part import WORKERS, Part, Settings, loader_cases, rates_part
from wdsbench.bench.timing import Work, consumed_sizes

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
    files, files_by_workers = readers.pyg_loader(pt, batch), readers.pyg_loader(pt, batch, WORKERS)
    return {
        "memcpy": memcpy(batch_bytes),
        **loader_cases(
            shards,
            batch,
            lambda batches: whole([batch.graph] for batch in batches),
            layout="graph",
        ),
        "from-data-list": lambda: share(readers.from_data_list(traces, batch, random)),
        "from-data-list-per-layer": lambda: share(
            readers.from_data_list_per_layer(traces, batch, random)
        ),
        "webdataset-from-data-list": lambda: share(
            readers.webdataset_from_data_list(shards, batch)
        ),
        "webdataset-numpy": lambda: share(readers.webdataset_arrays(shards, batch, *sizes)),
        "webdataset-tuned": lambda: share(
            readers.webdataset_arrays(shards, batch, *sizes, readers.widened_by_torch)
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
