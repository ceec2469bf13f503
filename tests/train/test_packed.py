"""Graph detectors on a data set that was packed and is read by the project's own loader."""

from __future__ import annotations

import csv
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import HEADS, LAYERS, Packed, make_dataset
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.detect.registry import detector_spec
from wdsbench.pack import PackOptions
from wdsbench.train.checkpoint import load_detector
from wdsbench.train.config import TrainConfig
from wdsbench.train.run import train

pytestmark = pytest.mark.usefixtures("no_plots", "no_controls")

QUICK = TrainConfig(epochs=1, batch_size=16, hidden=6, resamples=200, threads=1)
CHARMS = ("charm", "charm_no_edges", "charm_shuffled_edges")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    options = PackOptions(attention=("edges", "heads"), threads=1)
    return make_dataset(tmp_path_factory.mktemp("packed"), traces=64, seed=10, options=options)


def opened(packed: Packed, split: str, name: str, layers: list[int] | None) -> TraceLoader:
    return TraceLoader(
        packed.folder,
        split=split,
        **detector_spec(name).needs.arguments(),
        layers=layers,
        batch_size=5,
        num_workers=0,
        threads=1,
    )


@pytest.mark.parametrize("layers", [pytest.param(None, marks=FULL_ONLY), (0, 2)])
def test_graph_detectors_train_on_packed_traces(
    packed: Packed, layers: tuple[int, ...] | None, tmp_path: Path
) -> None:
    names = ("gnn", "gvae", *CHARMS)
    results = train(packed.folder, names, tmp_path, replace(QUICK, layers=layers))
    assert results.not_available == {}
    assert list(results.detectors) == list(names)
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    for name in names:
        detector = load_detector(tmp_path / "checkpoints" / name)
        assert detector.shape is not None
        assert detector.shape.num_heads == HEADS
        assert detector.shape.num_layers == (LAYERS if layers is None else len(layers))
        chosen = None if layers is None else list(layers)
        with closing(opened(packed, "test", name, chosen)) as loader:
            scores = detector.scores(loader)
        assert len(scores) == len(rows)
        for key, score in scores.items():
            assert score == pytest.approx(float(rows[key][name]), abs=1e-5)


def test_union_graph_is_what_charm_expects(packed: Packed) -> None:
    with closing(opened(packed, "val", "charm", None)) as loader:
        for batch in loader:
            graph, count = batch.graph, batch.token_count.numpy()
            np.testing.assert_array_equal(np.diff(graph.ptr.numpy()), count)
            assert graph.x.shape == (count.sum(), LAYERS, 8)
            assert graph.edge_attr.shape[1] == LAYERS * HEADS
            first = graph.ptr[:-1].repeat_interleave(graph.ptr.diff())[graph.edge_index[1]]
            trace = graph.batch[graph.edge_index[1]]
            assert (graph.edge_index[0] < graph.edge_index[1]).all()
            assert (graph.edge_index[0] >= first).all()
            assert (graph.edge_index[1] - first >= batch.prompt_length[trace]).all()


def test_without_heads_the_remedy_is_named(tmp_path: Path) -> None:
    options = PackOptions(attention=("edges",), threads=1)
    without = make_dataset(tmp_path, traces=64, seed=10, options=options)
    results = train(without.folder, ("gvae", *CHARMS), tmp_path / "out", QUICK)
    assert list(results.detectors) == ["gvae"]
    assert list(results.not_available) == list(CHARMS)
    assert all("repack with --attention heads" in r for r in results.not_available.values())
