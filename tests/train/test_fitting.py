"""The scale of attention weights: fitted on training traces alone, on all ranks the same, saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scripts import run_ranks
from torch import Tensor
from train.planted import FakeStore, Sample
from train.test_state import QUICK, SAMPLES, Store, run, stopped

from wdsbench.train.checkpoint import load_detector

NAMES = ("gnn", "gvae")

RANKS = """
import sys
import torch
from pathlib import Path
from train.test_fitting import ONE_EPOCH, SAMPLES, Store
from wdsbench.detect.registry import detector_spec
from wdsbench.progress import no_progress
from wdsbench.train.fitting import Run
from wdsbench.train.keeper import StopSwitch
from wdsbench.train.log import MetricsLog
from wdsbench.train.ranks import open_ranks
from wdsbench.train.source import Source

with open_ranks("cpu", 30) as ranks:
    mine = Store([s for s in SAMPLES if s.split == "train"][ranks.rank :: 2])
    source = Source("x", ONE_EPOCH, "cpu", mine)
    run = Run(source, {}, None, Path(), MetricsLog(None), no_progress, ranks, StopSwitch())
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
    """Return the logarithms of all training traces' weights in all layers."""
    weights = [w for s in samples if s.split == "train" for _, w in s.edges]
    return np.log(np.maximum(np.concatenate(weights).astype(np.float64), 2.0**-14))


def with_edges_times(sample: Sample, factor: float) -> Sample:
    """Return a trace whose attention weights are multiplied."""
    edges = [(index, weights * np.float32(factor)) for index, weights in sample.edges]
    return replace(sample, edges=edges)


def test_scale_of_attention_is_that_of_training_traces(tmp_path: Path) -> None:
    samples = [s if s.split == "train" else with_edges_times(s, 0.01) for s in SAMPLES]
    run(tmp_path, ONE_EPOCH, store=FakeStore(samples), names=NAMES)
    expected = logs(SAMPLES)
    for name in NAMES:
        mean, std = saved_scale(tmp_path, name)
        assert mean.item() == pytest.approx(expected.mean(), abs=1e-5)
        assert std.item() == pytest.approx(expected.std(), abs=1e-5)


def test_traces_without_an_edge_are_trained_on_all_the_same(tmp_path: Path) -> None:
    bare = [
        replace(s, edges=[(index[:, :0], weights[:0]) for index, weights in s.edges])
        for s in SAMPLES
    ]
    run(tmp_path, ONE_EPOCH, store=FakeStore(bare), names=NAMES)
    for name in NAMES:
        assert [part.item() for part in saved_scale(tmp_path, name)] == [0.0, 1.0]


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_that_goes_on_has_the_scale_it_began_with(name: str, tmp_path: Path) -> None:
    run(tmp_path / "whole", names=(name,))
    stopped(tmp_path / "two", names=(name,))
    # Other weights from here on: who fitted the scale anew would end with another one.
    store = Store([with_edges_times(s, 0.5) if s.split == "train" else s for s in SAMPLES])
    run(tmp_path / "two", names=(name,), store=store, resume=True)
    pairs = zip(
        saved_scale(tmp_path / "whole", name), saved_scale(tmp_path / "two", name), strict=True
    )
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.timeout(120)
def test_ranks_agree_on_the_scale_of_all_their_traces(tmp_path: Path) -> None:
    run_ranks(RANKS, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    expected = logs(SAMPLES)
    for one, other, value in zip(first, second, (expected.mean(), expected.std()), strict=True):
        assert torch.equal(one, other)
        assert one.item() == pytest.approx(value, abs=1e-5)
