"""Preprocessed graphs: lists of PyG ``Data`` in, states and edges out, and damaged ones named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import start_code
from torch_geometric.data import Data, HeteroData

from wdsbench.errors import TraceError
from wdsbench.pack import PackOptions, pack
from wdsbench.records import Trace
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.traces.graphs import REMARK_ATTRIBUTES, REMARK_SELF_LOOPS, REMARK_TURNED
from wdsbench.traces.read import read_traces

TOKENS, FEATURES = 3, 4


def graph(edges: list[tuple[int, int, float]], seed: int = 0, **more: Any) -> Data:
    """Return a Data of 3 nodes; ``edges`` are (source, target, weight)."""
    index = torch.tensor([edge[:2] for edge in edges], dtype=torch.long).reshape(-1, 2).T
    values: dict[str, Any] = {
        "x": torch.randn(TOKENS, FEATURES, generator=torch.Generator().manual_seed(seed)),
        "edge_index": index,
        "edge_attr": torch.tensor([edge[2] for edge in edges]).reshape(-1, 1),
    }
    return Data(**{**values, **more})


def saved(path: Path, graphs: list[Any], **more: Any) -> Path:
    torch.save(
        {
            "graphs": graphs,
            "labels": [1] * len(graphs),
            "question_ids": [f"q{i}" for i in range(len(graphs))],
            **more,
        },
        path,
    )
    return path


def read(tmp_path: Path, *graphs: Any) -> Trace:
    return next(iter(read_traces(saved(tmp_path / "a.pt", [list(graphs)]))))


def test_states_and_edges(tmp_path: Path) -> None:
    layers = [graph([(0, 1, 0.25), (1, 2, 0.5)]), graph([], seed=1)]
    trace = read(tmp_path, *layers)
    assert (trace.question_id, trace.label, trace.tokens.size, trace.remarks) == ("q0", 1.0, 0, ())
    np.testing.assert_array_equal(trace.hidden, np.stack([layer.x.numpy() for layer in layers]))
    assert trace.graphs is not None
    assert trace.graphs.part(0).index.tolist() == [[0, 1], [1, 2]]
    assert trace.graphs.part(1).index.tolist() == [[], []]
    assert trace.graphs.part(0).weight.tolist() == [0.25, 0.5]
    assert trace.graphs.part(0).index.dtype == np.uint8


def test_weights_without_a_second_axis(tmp_path: Path) -> None:
    trace = read(tmp_path, graph([(0, 1, 0.25)], edge_attr=torch.tensor([0.75])))
    assert trace.graphs is not None
    assert trace.graphs.part(0).weight.tolist() == [0.75]


def test_edges_are_ordered_by_target_then_source(tmp_path: Path) -> None:
    trace = read(tmp_path, graph([(1, 2, 0.3), (0, 2, 0.2), (0, 1, 0.1)]))
    assert trace.graphs is not None
    assert trace.graphs.part(0).index.tolist() == [[0, 0, 1], [1, 2, 2]]
    np.testing.assert_allclose(trace.graphs.part(0).weight, [0.1, 0.2, 0.3], atol=1e-3)


def test_what_is_changed_is_said(tmp_path: Path) -> None:
    changed = graph([(1, 1, 0.9), (2, 0, 0.5)], y=torch.tensor(1), note="mine")
    trace = read(tmp_path, changed, graph([]))
    assert trace.graphs is not None
    assert trace.graphs.part(0).index.tolist() == [[0], [2]]
    assert sorted(trace.remarks) == sorted([REMARK_ATTRIBUTES, REMARK_SELF_LOOPS, REMARK_TURNED])


def test_graphs_are_packed_and_counted(tmp_path: Path) -> None:
    traces = [[graph([(0, 1, 0.5), (2, 2, 1.0)], seed=i)] for i in range(4)]
    saved(tmp_path / "a.pt", traces)
    report = pack([str(tmp_path / "a.pt")], tmp_path / "out")
    assert (report.samples, report.without_attention) == (4, 0)
    assert report.remarks == {REMARK_SELF_LOOPS: 4}
    index = DatasetIndex.open(tmp_path / "out")
    assert index.columns["tokens"].tolist() == [TOKENS] * 4
    assert index.has_member("edges_index.npy")
    assert not index.has_member("sketch.npy")
    assert "graphs of the input" in index.file.fields["edges"].note


def test_pyg_is_not_imported(tmp_path: Path) -> None:
    saved(tmp_path / "a.pt", [[graph([(0, 1, 0.5)])]])
    code = """
import sys
from pathlib import Path
from wdsbench.traces.read import read_traces
def of_pyg():
    return [name for name in sys.modules if name.partition(".")[0] == "torch_geometric"]
for name in of_pyg():
    del sys.modules[name]
print(len(list(read_traces(Path(sys.argv[1])))), of_pyg())
"""
    process = start_code(code, tmp_path / "a.pt")
    out, err = process.communicate(timeout=60)
    assert out.split() == ["1", "[]"], err


# (how it is broken, the trace's graphs, words of the error)
BROKEN: list[tuple[str, Any, str]] = [
    ("no list", graph([]), "are a Data; expected a list"),
    ("empty", [], "are a list; expected a list of one Data"),
    ("a tensor", [torch.ones(3)], "layer 0: is a Tensor; expected torch_geometric.data.Data"),
    ("no x", [graph([]), graph([], x=None)], "layer 1: x is missing"),
    ("no weights", [graph([], edge_attr=None)], "layer 0: edge_attr is missing"),
    ("integer states", [graph([], x=torch.ones(3, 4).long())], "x has dtype int64"),
    ("states of one axis", [graph([], x=torch.ones(3))], r"x has dtype float32 and shape \(3,\)"),
    ("float index", [graph([(0, 1, 0.5)], edge_index=torch.ones(2, 1))], "edge_index has dtype"),
    ("beyond the tokens", [graph([(0, 3, 0.5)])], r"edge_index is 0 to 3; expected 0 \.\. 2"),
    ("before the tokens", [graph([(-1, 1, 0.5)])], "edge_index is -1 to 1"),
    ("counts", [graph([(0, 1, 0.5)], edge_attr=torch.ones(2, 1))], "edge_attr 2 values"),
    ("scores", [graph([(0, 1, 3.5)])], "edge_attr is 3.5 to 3.5; attention is 0 to 1"),
    ("NaN weight", [graph([(0, 1, float("nan"))])], "attention is 0 to 1"),
    ("both ways", [graph([(0, 1, 0.5), (1, 0, 0.5)])], "tokens 0 and 1 have two edges"),
    ("unequal layers", [graph([]), graph([], x=torch.ones(2, 4))], "differ in the shape of x"),
    ("NaN state", [graph([], x=torch.full((3, 4), torch.nan))], "layer 0, holds NaN"),
]


@pytest.mark.parametrize(("graphs", "words"), [r[1:] for r in BROKEN], ids=[r[0] for r in BROKEN])
def test_broken_graphs(graphs: Any, words: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", [[graph([])], graphs])
    with pytest.raises(TraceError, match=words) as caught:
        list(read_traces(path))
    assert (caught.value.file, caught.value.position) == (str(path), 1)


def test_no_other_class_of_pyg(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nothing in it was run"):
        list(read_traces(saved(tmp_path / "a.pt", [[HeteroData()]])))


def test_graphs_need_as_many_ids(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="1 question_ids and 2 graphs"):
        list(read_traces(saved(tmp_path / "a.pt", [[graph([])]] * 2, question_ids=["a"])))


def test_attention_that_graphs_cannot_give_is_not_there(tmp_path: Path) -> None:
    saved(tmp_path / "a.pt", [[graph([(0, 1, 0.5)])]])
    options = PackOptions(attention=("sketch",))
    assert pack([str(tmp_path / "a.pt")], tmp_path / "o", options=options).without_attention == 1
