"""The union, cut to what is read out, against one full graph after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from train.planted import Sample, graph_batch, make_samples

from wdsbench.detect.gnn import AttentionRound, GNNDetector, reach_of
from wdsbench.detect.registry import detector_spec
from wdsbench.records import Batch


def slow_round(module: AttentionRound, nodes: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
    """Return one GINE round by its definition, target by target and edge by edge."""
    rows = []
    for target in range(nodes.shape[0]):
        summed = torch.zeros_like(nodes[target])
        for edge in range(edges.shape[1]):
            if int(edges[1, edge]) == target:
                feature = module.conv.lin(weights[edge : edge + 1])[0]
                summed = summed + torch.relu(nodes[int(edges[0, edge])] + feature)
        update = module.conv.nn(summed + (1 + module.conv.eps) * nodes[target])
        rows.append(module.norm(nodes[target] + update))
    return torch.stack(rows)


def slow_forward(detector: GNNDetector, samples: list[Sample]) -> Tensor:
    """Return logits, sample by sample and layer by layer, all tokens in both rounds."""
    logits = []
    for sample in samples:
        sequence = []
        for layer, (index, weight) in enumerate(sample.edges):
            x = torch.from_numpy(sample.hidden[layer])
            raw = detector.scale.rows(x, torch.full((len(x),), layer))
            edges, weights = torch.from_numpy(index), torch.from_numpy(weight)[:, None]
            nodes = detector.project(raw)
            nodes = slow_round(detector.first, nodes, edges, weights)
            nodes = slow_round(detector.second, nodes, edges, weights)
            sequence.append(torch.cat([raw[-1], nodes[-1]]))
        logits.append(detector.over_layers(torch.stack(sequence)[None])[0])
    return torch.stack(logits)


def make_detector() -> GNNDetector:
    torch.manual_seed(0)
    detector = GNNDetector(8, num_layers=3, hidden=12, dropout=0.0)
    detector.scale.set_moments(torch.randn(3, 8), torch.rand(3, 8) * 20 + 0.1)
    with torch.no_grad():
        detector.first.conv.eps.fill_(0.3)
    return detector


def test_union_equals_one_graph_after_the_other() -> None:
    samples = make_samples(6, signal=1.0, seed=0)
    # A trace of one token has no edge at all.
    lone = samples[2]
    no_edges = (lone.edges[0][0][:, :0], lone.edges[0][1][:0])
    samples[2] = Sample(
        lone.key, lone.split, lone.label, lone.hidden[:, -1:], [no_edges] * 3, 0, None
    )
    detector = make_detector().train()
    graph = graph_batch(samples)
    labels = torch.tensor([sample.label for sample in samples])

    gradients, outputs = [], []
    for forward in (
        lambda: detector(graph.x, graph.edge_index, graph.edge_attr, graph.ptr),
        lambda: slow_forward(detector, samples),
    ):
        detector.zero_grad()
        logits = forward()
        torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        outputs.append(logits.detach())
        gradients.append({n: p.grad.clone() for n, p in detector.named_parameters()})
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-5)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=0, atol=1e-5, msg=name)
    # Every part of the detector is in use; a twin that agrees on zero would prove nothing.
    for name in ("project.0.weight", "first.conv.lin.weight", "second.conv.nn.0.weight"):
        assert gradients[0][name].abs().max() > 1e-4


def test_samples_of_a_batch_do_not_touch_each_other() -> None:
    samples = make_samples(5, signal=1.0, seed=1)
    detector = make_detector().eval()

    def logits(chosen: list[Sample]) -> Tensor:
        graph = graph_batch(chosen)
        result: Tensor = detector(graph.x, graph.edge_index, graph.edge_attr, graph.ptr)
        return result

    together = logits(samples)
    alone = torch.cat([logits([sample]) for sample in samples])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_reach_of_a_small_graph() -> None:
    # 0 -> 1 -> 3, 2 -> 3 is read out; 0 -> 2 reaches 3 in two hops; 4 -> 5 is another graph.
    edges = torch.tensor([[0, 1, 2, 0, 4], [1, 3, 3, 2, 5]])
    reach = reach_of(torch.tensor([3, 5]), edges, 6)
    assert reach.nodes.tolist() == [1, 2, 3, 4, 5]
    assert reach.first_edges.tolist() == [0, 1, 2, 3, 4]
    assert reach.first.tolist() == [[0, 1, 2, 0, 4], [0, 2, 2, 1, 4]]
    assert reach.second_edges.tolist() == [1, 2, 4]
    assert reach.second.tolist() == [[0, 1, 3], [0, 0, 1]]
    assert reach.last.tolist() == [2, 4]
    alone = reach_of(torch.tensor([1]), edges, 6)
    assert alone.nodes.tolist() == [0, 1]
    assert alone.first_edges.tolist() == [0]


def test_graphs_that_are_not_whole_samples_are_refused() -> None:
    detector = make_detector()
    graph = graph_batch(make_samples(2, signal=1.0, seed=1))
    with pytest.raises(ValueError, match="5 graphs are not whole samples of 3 layers"):
        detector(graph.x, graph.edge_index, graph.edge_attr, graph.ptr[:-1])


def test_registry_takes_the_graph_from_a_batch() -> None:
    spec = detector_spec("gnn")
    assert spec.inputs is not None
    samples = make_samples(2, signal=1.0, seed=1)
    graph = graph_batch(samples)
    one = torch.zeros(2)
    batch = Batch(one, one, one.long(), one.long(), ["a", "b"], ["a", "b"], graph=graph)
    logits = make_detector()(*spec.inputs(batch))
    assert logits.shape == (2,)
    assert logits.dtype == torch.float32
