"""Data of the benchmarks at a size for tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from trials import FULL

from wdsbench.bench.data import (
    Shape,
    TraceShape,
    make_pt,
    make_raw,
    make_shards,
)
from wdsbench.bench.graphs import GraphShape, make_graph_files, make_graph_shards
from wdsbench.bench.part import Settings


@pytest.fixture(autouse=True)
def small_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy 4 MB, not 512, and run two epochs of a reader, not ten, outside of full trials."""
    if not FULL:
        monkeypatch.setattr("wdsbench.bench.ceiling.MEMCPY_BYTES", 1 << 22)
        monkeypatch.setattr("wdsbench.bench.part.LEAST_EPOCHS", 2)


@pytest.fixture(scope="session")
def shape() -> Shape:
    return Shape("tiny", 40, 2, 16, 8)


@pytest.fixture(scope="session")
def trace_shape() -> TraceShape:
    return TraceShape("ragged", 10, 2, 16, 4, 3, 9)


@pytest.fixture(scope="session")
def graph_shape() -> GraphShape:
    # From traces of one token, which have no edges; two batches for each of two workers.
    return GraphShape("graphs", 16, 3, 8, 4, 1, 9)


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data=tmp_path_factory.mktemp("bench"), repeats=1, least_seconds=0.0)


@pytest.fixture(scope="session")
def data(shape: Shape, settings: Settings) -> Path:
    """Return the folder of the equal samples, all three forms of them."""
    folder = settings.data / shape.folder_name
    make_shards(shape, folder)
    make_raw(shape, folder)
    make_pt(shape, folder)
    return folder


@pytest.fixture(scope="session")
def trace_data(trace_shape: TraceShape, settings: Settings) -> Path:
    """Return the folder of the traces, both forms of them."""
    folder = settings.data / trace_shape.folder_name
    make_shards(trace_shape, folder)
    make_raw(trace_shape, folder)
    return folder


@pytest.fixture(scope="session")
def graph_data(graph_shape: GraphShape, settings: Settings) -> Path:
    """Return the folder of the graphs, both forms of them."""
    folder = settings.data / graph_shape.folder_name
    make_graph_shards(graph_shape, folder)
    make_graph_files(graph_shape, folder)
    return folder
