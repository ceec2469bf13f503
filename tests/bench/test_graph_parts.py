"""The parts of the scenario graph run for real at a small size. No times."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch_geometric.data import Batch
from trials import FULL, full_only

from wdsbench.bench.edges import MapShape, edges_part
from wdsbench.bench.gnn import gnn_part, over_cut_layers, over_layers, over_union
from wdsbench.bench.graph import graph_part, per_layer
from wdsbench.bench.graphs import GraphShape, graphs_in_memory
from wdsbench.bench.part import Part, Settings
from wdsbench.bench.parts import graph_parts, named
from wdsbench.bench.report import as_json, plot_parts, print_part
from wdsbench.cli.main import main
from wdsbench.detect.gnn import GNNDetector
from wdsbench.detect.registry import DetectorShape

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

READERS = [
    "from-data-list",
    "from-data-list-per-layer",
    "webdataset-from-data-list",
    "webdataset-numpy",
    "webdataset-tuned",
    "pyg-loader",
    "pyg-loader-w2",
]


def check(
    part: Part,
    cases: list[str],
    ratios: set[str],
    settings: Settings,
    folder: Path,
    *,
    drawn: bool = FULL,
) -> None:
    """Assert what holds for every part: names, numbers, a table, JSON and, if ``drawn``, a picture
    of it.
    """
    assert [result.name for result in part.results] == cases
    assert set(part.ratios) == ratios
    assert all(part.value(name) > 0 for name in cases)
    printed = io.StringIO()
    print_part(part, Console(width=120, file=printed))
    assert all(f" {name} " in printed.getvalue() for name in cases)
    assert part.unit in printed.getvalue()
    report = json.loads(json.dumps(as_json("graph", [part], settings), allow_nan=False))
    assert report["scenario"] == "graph"
    assert [case["name"] for case in report["cases"]] == [f"{part.name}/{name}" for name in cases]
    if drawn:
        assert plot_parts(folder / "parts.png", [part]).read_bytes().startswith(b"\x89PNG")


@full_only
def test_batches(
    graph_data: Path, graph_shape: GraphShape, settings: Settings, tmp_path: Path
) -> None:
    assert graph_data.parent == settings.data
    part = graph_part(settings, graph_shape)
    ratios = {f"ours_over_{name}" for name in ("memcpy", *READERS)} | {"ours_w2_over_ours_w0"}
    cases = ["memcpy", "ours-t1", "ours-t2", "ours-w2", *READERS]
    check(part, cases, ratios, settings, tmp_path)
    traces = graphs_in_memory(graph_shape)
    nodes = sum(len(graph.x) for graphs in traces for graph in graphs)
    edges = sum(graph.num_edges for graphs in traces for graph in graphs)
    # x float32, edge_index int64 twice, edge_attr float32; four batches
    total = nodes * graph_shape.features * 4 + edges * 20
    assert part.facts["batch_bytes"] == total // 4


def test_edges(settings: Settings, tmp_path: Path) -> None:
    part = edges_part(settings, MapShape(2, 3, 12))
    cases = ["ours-t1", "ours-t2", "numpy", "python", "ours-heads", "ours-sketch"]
    check(part, cases, {"ours_over_numpy", "ours_over_python"}, settings, tmp_path, drawn=True)


@full_only
def test_training_steps(graph_shape: GraphShape, settings: Settings, tmp_path: Path) -> None:
    part = gnn_part(settings, graph_shape)
    suffixes = ["", "-gpu"] if torch.cuda.is_available() else [""]
    forms = ("union", "per-layer", "per-layer-cut")
    cases = [f"{name}{suffix}" for suffix in suffixes for name in forms]
    ratios = {
        f"union_over_{name}{suffix.replace('-', '_')}"
        for suffix in suffixes
        for name in ("per_layer", "per_layer_cut")
    }
    check(part, cases, ratios, settings, tmp_path)


def test_union_and_layers_agree(graph_shape: GraphShape) -> None:
    traces = graphs_in_memory(graph_shape)[:3]
    torch.manual_seed(0)
    detector = GNNDetector(DetectorShape(graph_shape.layers, graph_shape.features, dropout=0.0))
    union = [Batch.from_data_list([graph for graphs in traces for graph in graphs])]
    layers = per_layer(traces)
    found = []
    for forward, unions in (
        (over_union, union),
        (over_layers, layers),
        (over_cut_layers, layers),
    ):
        detector.zero_grad()
        logits = forward(detector, unions)
        logits.square().sum().backward()  # type: ignore[no-untyped-call]
        gradients = [weight.grad.clone() for weight in detector.parameters()]  # type: ignore[union-attr]
        found.append([logits.detach(), *gradients])
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_parts_by_name() -> None:
    assert named(["gnn", "C"], graph_parts()) == [graph_part, gnn_part]
    assert named(["all"], graph_parts()) == [graph_part, edges_part, gnn_part]
    with pytest.raises(ValueError, match="not a list of C, edges, gnn, all"):
        named(["A"], graph_parts())


@full_only
def test_the_last_line_is_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wdsbench.bench.part.Settings", partial(Settings, least_seconds=0.0))
    out = tmp_path / "o.json"
    words = ["--cases", "edges", "--repeats", "1", "--data", str(tmp_path / "d"), "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        main(["bench", "graph", *words])
    assert not ended.value.code
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads(out.read_text())
    assert printed["scenario"] == "graph"
    assert set(printed["ratios"]) == {"edges/ours_over_numpy", "edges/ours_over_python"}


def test_an_unknown_case_names_those_of_the_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "graph", "--cases", "A"])
    assert ended.value.code == 1
    assert "not a list of C, edges, gnn, all" in capsys.readouterr().err
