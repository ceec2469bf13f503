"""The scale of attention weights: fitted on training traces alone, on all ranks the same, saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scripts import run_ranks
from torch import Tensor
from train.planted import Sample, store
from train.test_state import QUICK, SAMPLES, run, stopped
from trials import FULL_ONLY, full_only

from wdsbench.train.checkpoint import load_detector
from wdsbench.train.fitting import FitContext
from wdsbench.train.run import train

pytestmark = pytest.mark.usefixtures("no_plots", "no_controls")

NAMES = ("gnn", "gvae")

RANKS = """
import sys
import torch
from pathlib import Path
from train.test_fitting import ONE_EPOCH
from wdsbench import TraceLoader
from wdsbench.detect.registry import detector_spec
from wdsbench.progress import no_progress
from wdsbench.train.fitting import FitContext
from wdsbench.train.log import MetricsLog
from wdsbench.train.ranks import open_ranks
from wdsbench.train.source import Source
from wdsbench.train.stop import StopRequest

with open_ranks("cpu", 30) as ranks:
    source = Source(sys.argv[2], ONE_EPOCH, "cpu", TraceLoader)
    index = TraceLoader(sys.argv[2]).index
    log = MetricsLog(None)
    run = FitContext(source, ranks, StopRequest(), no_progress, {}, index, Path(), log)
    found = run.input_weight_moments(detector_spec("gnn").needs)
    torch.save(found, f"{sys.argv[1]}/{ranks.rank}.pt")
"""
ONE_EPOCH = replace(QUICK, epochs=1)


def saved_scale(out: Path, name: str) -> tuple[Tensor, Tensor]:
    """Return mean and std in a checkpoint."""
    module = load_detector(out / "checkpoints" / name).module
    assert module is not None
    buffers = dict(module.named_buffers())
    assert buffers["scale_weights.logarithmic"]
    return buffers["scale_weights.mean"], buffers["scale_weights.std"]


def logs(samples: list[Sample]) -> np.ndarray:
    """Return the logarithms of all stored weights of training traces in all layers."""
    loader = store(samples).open("train", fields=("hidden",), tokens="all", layout="graph")
    weights = torch.cat([batch.graph.edge_attr.clone() for batch in loader]).double().numpy()
    assert len(weights) == sum(len(w) for s in samples if s.split == "train" for _, w in s.edges)
    return np.log(np.maximum(weights, 2.0**-14))


def with_edges_times(sample: Sample, factor: float) -> Sample:
    """Return a trace whose attention weights are multiplied."""
    return replace(sample, maps=sample.maps * np.float32(factor))


def test_scale_of_attention_is_that_of_training_traces(tmp_path: Path) -> None:
    samples = [s if s.split == "train" else with_edges_times(s, 0.01) for s in SAMPLES]
    run(tmp_path, ONE_EPOCH, samples=samples, names=NAMES)
    expected = logs(SAMPLES)
    for name in NAMES:
        mean, std = saved_scale(tmp_path, name)
        assert mean.item() == pytest.approx(expected.mean(), abs=1e-5)
        assert std.item() == pytest.approx(expected.std(), abs=1e-5)


def test_traces_without_an_edge_are_trained_on_all_the_same(tmp_path: Path) -> None:
    bare = store(SAMPLES, attention=("edges",), edge_rule="threshold:1").folder
    train(bare, NAMES, tmp_path, ONE_EPOCH)
    for name in NAMES:
        assert [part.item() for part in saved_scale(tmp_path, name)] == [0.0, 1.0]


@pytest.mark.parametrize("name", ["gnn", pytest.param("gvae", marks=FULL_ONLY)])
def test_a_resumed_fit_has_the_scale_it_began_with(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object) -> None:
        raise AssertionError("the scale was fitted again")

    config = replace(QUICK, epochs=2)
    run(tmp_path / "whole", config, names=(name,))
    stopped(tmp_path / "two", 1, config=config, names=(name,))
    monkeypatch.setattr(FitContext, "input_weight_moments", refused)
    run(tmp_path / "two", config, names=(name,), resume=True)
    pairs = zip(
        saved_scale(tmp_path / "whole", name), saved_scale(tmp_path / "two", name), strict=True
    )
    assert all(torch.equal(one, other) for one, other in pairs)


@full_only
@pytest.mark.timeout(120)
def test_ranks_agree_on_the_scale_of_all_their_traces(tmp_path: Path) -> None:
    run_ranks(RANKS, tmp_path, store(SAMPLES).folder)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    expected = logs(SAMPLES)
    for one, other, value in zip(first, second, (expected.mean(), expected.std()), strict=True):
        assert torch.equal(one, other)
        assert one.item() == pytest.approx(value, abs=1e-5)
