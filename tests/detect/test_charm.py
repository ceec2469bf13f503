"""CHARM-lite over a batch, against one trace after the other, and the edges of its controls."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import torch
from detect.slow import assert_twins, odd_samples, slow_charm, triples
from torch import Tensor
from train.planted import Sample, make_placed_samples, make_samples, union_batch, union_edges

from wdsbench.detect.charm import CharmDetector, Edges, shuffle_edges
from wdsbench.detect.registry import DetectorShape, detector_spec
from wdsbench.errors import DetectorError
from wdsbench.records import Batch

EDGES: tuple[Edges, ...] = ("kept", "none", "shuffled")


def make_detector(edges: Edges = "kept", num_heads: int = 1) -> CharmDetector:
    torch.manual_seed(0)
    detector = CharmDetector(
        DetectorShape(3, 8, hidden=12, dropout=0.0, num_heads=num_heads), edges
    )
    detector.scale.set_moments(torch.randn(3, 8), torch.rand(3, 8) * 20 + 0.1)
    return detector


def inputs(
    samples: list[Sample], dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    graph = union_batch(samples)
    prompt = torch.tensor([sample.prompt_length for sample in samples])
    return graph.x.to(dtype), graph.edge_index, graph.edge_attr.to(dtype), graph.ptr, prompt


def seen_edges(samples: list[Sample], edges: Edges) -> list[list[tuple[int, int, Tensor]]]:
    """Return the edges a detector sees of each sample when it is alone."""
    found = []
    for sample in samples:
        index, vectors = union_edges(sample)
        if edges == "none":
            index, vectors = index[:, :0], vectors[:0]
        elif edges == "shuffled":
            pointer = torch.tensor([0, sample.hidden.shape[1]])
            moved = shuffle_edges(
                torch.from_numpy(index.copy()), torch.from_numpy(vectors), pointer
            )
            index, vectors = moved[0].numpy(), moved[1].numpy()
        found.append(triples(index, vectors))
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("edges", EDGES)
def test_batch_equals_one_trace_after_the_other(edges: Edges, dtype: str, tolerance: float) -> None:
    samples = odd_samples()
    detector = make_detector(edges).to(getattr(torch, dtype))
    arguments = inputs(samples, getattr(torch, dtype))
    assert torch.bincount(arguments[1][1], minlength=1).max() > 1
    gradients = assert_twins(
        detector,
        lambda: detector(*arguments),
        lambda: slow_charm(detector, samples, seen_edges(samples, edges)),
        samples,
        tolerance=tolerance,
    )
    for name, gradient in gradients.items():
        unused = edges == "none" and (".edge." in name or name.endswith(".gate"))
        assert (gradient.abs().max() > 1e-6) != unused, name


def test_edge_vectors_of_several_heads() -> None:
    samples = make_placed_samples(4, seed=0, num_heads=2)
    detector, arguments = make_detector(num_heads=2), inputs(samples)
    assert arguments[2].shape[1] == 6
    torch.testing.assert_close(
        detector(*arguments), slow_charm(detector, samples), rtol=0, atol=1e-5
    )


def test_samples_of_a_batch_do_not_touch_each_other() -> None:
    samples = odd_samples()
    for edges in EDGES:
        detector = make_detector(edges).eval()
        alone = torch.cat([detector(*inputs([sample])) for sample in samples])
        torch.testing.assert_close(detector(*inputs(samples)), alone, rtol=0, atol=1e-5)


def test_controls_are_the_same_network() -> None:
    weights = [make_detector(edges).state_dict() for edges in EDGES]
    for other in weights[1:]:
        assert list(other) == list(weights[0])
        assert all(torch.equal(other[name], weights[0][name]) for name in other)


def test_without_edges_no_edge_matters_and_with_them_each_does() -> None:
    samples = make_samples(3, signal=1.0, seed=4)
    x, edge_index, edge_attr, ptr, prompt = inputs(samples)
    without, kept = make_detector("none").eval(), make_detector("kept").eval()
    assert torch.equal(
        without(x, edge_index, edge_attr, ptr, prompt),
        without(x, edge_index.flip(1), 1 - edge_attr, ptr, prompt),
    )
    before = kept(x, edge_index, edge_attr, ptr, prompt)
    assert not torch.allclose(kept(x, edge_index, 1 - edge_attr, ptr, prompt), before)


def test_readout_is_the_answer_and_the_last_token() -> None:
    # Without messages a prompt token changes nothing, an answer token does.
    samples = make_samples(1, signal=1.0, seed=5)
    detector = make_detector("none").eval()
    x, edge_index, edge_attr, ptr, prompt = inputs(samples)
    before = detector(x, edge_index, edge_attr, ptr, prompt)
    for token in range(len(x)):
        changed = x.clone()
        changed[token] += 5
        same = torch.equal(detector(changed, edge_index, edge_attr, ptr, prompt), before)
        assert same == (token < samples[0].prompt_length)


def test_unknown_prompt_length_is_the_loaders_to_refuse() -> None:
    *arguments, prompt = inputs(make_samples(2, signal=1.0, seed=1))
    with pytest.raises(AssertionError, match="unknown prompt length"):
        make_detector()(*arguments, torch.full_like(prompt, -1))


def edge_rows(index: Tensor) -> list[tuple[int, int]]:
    return [(int(source), int(target)) for source, target in index.T]


def test_shuffling_keeps_vectors_targets_and_causality() -> None:
    samples = make_placed_samples(20, seed=1)
    _, index, vectors, ptr, _ = inputs(samples)
    moved_index, moved_vectors = shuffle_edges(index, vectors, ptr)
    assert torch.equal(moved_index[1], index[1])
    assert (moved_index[0] < moved_index[1]).all()
    sources, moved_places = [], 0
    for first, last in pairwise(ptr.tolist()):
        inside = (index[1] >= first) & (index[1] < last)
        assert (moved_index[0][inside] >= first).all()
        before, after = vectors[inside], moved_vectors[inside]
        assert sorted(before.tolist()) == sorted(after.tolist())
        moved_places += int((before != after).any(dim=1).sum())
        sources += (moved_index[0][inside] - first).tolist()
    assert moved_places > 0.8 * len(vectors)  # 12 or 18 edges a trace: one in that many stays
    assert edge_rows(moved_index) != edge_rows(index)
    assert set(sources) >= {0, 1, 2, 3, 4, 5, 6}


def test_shuffling_is_a_matter_of_the_trace_alone() -> None:
    samples = make_placed_samples(6, seed=2)

    def moved(chosen: list[Sample]) -> list[tuple[list[list[float]], list[int]]]:
        _, index, vectors, ptr, _ = inputs(chosen)
        new_index, new_vectors = shuffle_edges(index, vectors, ptr)
        found = []
        for first, last in pairwise(ptr.tolist()):
            inside = (index[1] >= first) & (index[1] < last)
            found.append((new_vectors[inside].tolist(), (new_index[0][inside] - first).tolist()))
        return found

    together = moved(samples)
    assert moved(samples) == together
    assert moved(samples[::-1]) == together[::-1]
    assert [moved([sample])[0] for sample in samples] == together


def test_traces_of_one_size_are_shuffled_differently() -> None:
    # A permutation given by sizes alone is one that a detector can learn to undo.
    generator = np.random.default_rng(0)
    one = replace(make_placed_samples(1, seed=3)[0])
    assert one.heads is not None
    index, vectors = one.heads
    vectors = np.arange(vectors.size, dtype=np.float32).reshape(vectors.shape) + 1
    twins = [
        replace(one, heads=(index, vectors * np.float32(generator.uniform(1, 2))))
        for _ in range(400)
    ]
    _, union, weights, ptr, _ = inputs(twins)
    sources, moved = shuffle_edges(union, weights, ptr)
    edges = index.shape[1]
    scale = weights.view(400, edges, -1)[:, :1, :1]
    came_from = (moved.view(400, edges, -1)[:, :, :1] / scale).squeeze(2).sub(1).div(6).round()
    # Every place holds every vector about as often: within five standard errors.
    for place in range(edges):
        counts = torch.bincount(came_from[:, place].long(), minlength=edges)
        assert (counts - 400 / edges).abs().max() < 5 * (400 / edges) ** 0.5
    drawn = (sources[0] - ptr[:-1].repeat_interleave(edges)).view(400, edges)
    target = int(index[1, -1])
    counts = torch.bincount(drawn[:, -1], minlength=target)
    assert len(counts) == target
    assert (counts - 400 / target).abs().max() < 5 * (400 / target) ** 0.5


@pytest.mark.gpu
def test_shuffling_is_the_same_on_a_gpu() -> None:
    _, index, vectors, ptr, _ = inputs(make_placed_samples(20, seed=1))
    there = shuffle_edges(index.cuda(), vectors.cuda(), ptr.cuda())
    for one, other in zip(there, shuffle_edges(index, vectors, ptr), strict=True):
        assert torch.equal(one.cpu(), other)


def test_shuffling_nothing_is_nothing() -> None:
    index, vectors = shuffle_edges(
        torch.empty(2, 0, dtype=torch.int64), torch.empty(0, 3), torch.tensor([0, 1])
    )
    assert index.shape == (2, 0)
    assert vectors.shape == (0, 3)


@pytest.mark.parametrize("name", ["charm", "charm_no_edges", "charm_shuffled_edges"])
def test_registry_takes_graph_and_prompt_length_from_a_batch(name: str) -> None:
    spec = detector_spec(name)
    assert spec.inputs is not None
    assert spec.build is not None
    samples = make_samples(2, signal=1.0, seed=1)
    prompt = torch.tensor([sample.prompt_length for sample in samples])
    zero = torch.zeros(2)
    batch = Batch(zero, zero, prompt, prompt, ["a", "b"], ["a", "b"], graph=union_batch(samples))
    module = spec.build(DetectorShape(num_layers=3, num_features=8, hidden=4, num_heads=1))
    logits = module(*spec.inputs(batch))
    assert logits.shape == (2,)
    assert logits.dtype == torch.float32
    expected: dict[str, Literal["kept", "none", "shuffled"]] = {
        "charm": "kept",
        "charm_no_edges": "none",
        "charm_shuffled_edges": "shuffled",
    }
    assert module.edges == expected[name]
    with pytest.raises(DetectorError, match="num_heads is 0; must be at least 1"):
        spec.build(DetectorShape(num_layers=3, num_features=8))
