"""Graph data is the same in every form, and every reader gives the same samples as the loader."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch

from wdsbench import TraceLoader
from wdsbench.bench import graph as readers
from wdsbench.bench.data import SHARDS_NAME
from wdsbench.bench.graph import Graphs, graph_bytes
from wdsbench.bench.graphs import (
    GRAPHS,
    PT_NAME,
    GraphShape,
    graphs_in_memory,
    make_graph_files,
    make_graph_shards,
)

# webdataset leaves shards to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NAMES = ("x", "edge_index", "edge_attr")

#: Of one sample, for every layer: x, edge_index from 0, edge_attr.
Sample = tuple[tuple[bytes, bytes, bytes], ...]


def separated(graph: Any) -> list[tuple[bytes, bytes, bytes]]:
    """Return the graphs of a union, undone by hand: ``Data`` made by hand has no inverse."""
    assert (graph.x.dtype, graph.edge_attr.dtype) == (torch.float32, torch.float32)
    assert (graph.edge_index.dtype, graph.ptr.dtype) == (torch.int64, torch.int64)
    of_edge = graph.batch[graph.edge_index[1]]
    assert torch.equal(of_edge, graph.batch[graph.edge_index[0]])
    assert torch.equal(of_edge, of_edge.sort().values)
    found = []
    for number, (first, last) in enumerate(pairwise(graph.ptr.tolist())):
        assert graph.batch[first:last].eq(number).all()
        edges = of_edge == number
        parts = graph.x[first:last], graph.edge_index[:, edges] - first, graph.edge_attr[edges]
        found.append(tuple(part.contiguous().numpy().tobytes() for part in parts))
    return found  # type: ignore[return-value]


def samples_of(batches: Iterable[Graphs], layers: int) -> list[Sample]:
    """Return every sample's content, sorted: orders differ."""
    found: list[Sample] = []
    for graphs in batches:
        if len(graphs) == 1:
            flat = separated(graphs[0])
            found += [tuple(flat[i : i + layers]) for i in range(0, len(flat), layers)]
        else:
            assert len(graphs) == layers
            found += zip(*map(separated, graphs), strict=True)
    return sorted(found)


def test_every_reader_gives_the_same_samples(graph_data: Path, graph_shape: GraphShape) -> None:
    shards, pt = graph_data / SHARDS_NAME, graph_data / PT_NAME
    batch, sizes = graph_shape.batch_size, (graph_shape.layers, graph_shape.features)
    traces = graphs_in_memory(graph_shape)
    expected = samples_of([[Batch.from_data_list(graphs)] for graphs in traces], sizes[0])
    assert len(expected) == len(set(expected)) == graph_shape.samples
    random = torch.Generator().manual_seed(0)
    found: dict[str, Iterable[Graphs]] = {
        "from-data-list": readers.from_data_list(traces, batch, random),
        "per-layer": readers.from_data_list_per_layer(traces, batch, random),
        "webdataset": readers.webdataset_from_data_list(shards, batch),
        "numpy": readers.webdataset_arrays(shards, batch, *sizes),
        "tuned": readers.webdataset_arrays(shards, batch, *sizes, readers.widened_by_torch),
        "pyg": readers.pyg_loader(pt, batch),
        "pyg-w2": readers.pyg_loader(pt, batch, 2),
    }
    for workers in (0, 2):
        loader = TraceLoader(
            shards, layout="graph", batch_size=batch, shuffle=9, num_workers=workers
        )
        found[f"ours-w{workers}"] = ([one.graph] for one in loader)
    for name, batches in found.items():
        assert samples_of(batches, sizes[0]) == expected, name


def test_ours_is_what_pyg_collates(graph_data: Path, graph_shape: GraphShape) -> None:
    traces = graphs_in_memory(graph_shape)
    seen = 0
    for batch in TraceLoader(
        graph_data / SHARDS_NAME, layout="graph", batch_size=graph_shape.batch_size, shuffle=9
    ):
        rows = [int(question_id[1:]) for question_id in batch.question_ids]
        graphs = [graph for row in rows for graph in traces[row]]
        expected = Batch.from_data_list(graphs)
        assert set(batch.graph.keys()) == set(expected.keys())
        for name in expected.keys():  # noqa: SIM118 - PyG's, not a dict's
            assert torch.equal(batch.graph[name], expected[name]), name
            assert batch.graph[name].dtype == expected[name].dtype, name
        assert graph_bytes([batch.graph]) == graph_bytes(graphs)
        seen += len(rows)
    assert seen == graph_shape.samples


def test_graph_data_is_made_once(graph_data: Path, graph_shape: GraphShape) -> None:
    before = {path: path.stat().st_mtime_ns for path in graph_data.rglob("*")}
    make_graph_shards(graph_shape, graph_data)
    make_graph_files(graph_shape, graph_data)
    assert {path: path.stat().st_mtime_ns for path in graph_data.rglob("*")} == before


def test_a_scale_keeps_whole_batches_for_every_worker() -> None:
    assert GRAPHS.scaled(1.0) == GRAPHS
    assert GRAPHS.scaled(1e-9).samples == 32
    assert GRAPHS.scaled(0.55).samples == 160
    assert dataclasses.asdict(GRAPHS) == {
        "name": "C",
        "samples": 320,
        "layers": 32,
        "features": 64,
        "shortest": 20,
        "longest": 80,
        "batch_size": 16,
    }
    assert (min(GRAPHS.tokens), max(GRAPHS.tokens)) == (20, 80)
