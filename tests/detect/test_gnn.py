"""The union, cut to the neighbourhood of the readout, against one full graph at a time."""

from __future__ import annotations

import pytest
import torch
from detect.slow import assert_twins, odd_samples, slow_gnn
from torch import Tensor
from torch_geometric.nn import GINEConv
from train.planted import Sample, graph_batch, make_samples

from wdsbench.detect.gnn import GNNDetector, reach_of
from wdsbench.detect.registry import DetectorShape, detector_spec
from wdsbench.records import Batch


def make_detector() -> GNNDetector:
    torch.manual_seed(0)
    detector = GNNDetector(DetectorShape(3, 8, hidden=12, dropout=0.0))
    detector.scale.set_moments(torch.randn(3, 8), torch.rand(3, 8) * 20 + 0.1)
    detector.scale_weights.set_moments(torch.tensor([[-1.5]]), torch.tensor([[0.8]]))
    with torch.no_grad():
        detector.first.conv.eps.fill_(0.3)
    return detector


def test_union_equals_one_graph_after_the_other() -> None:
    samples = odd_samples()
    detector = make_detector()
    graph = graph_batch(samples)
    gradients = assert_twins(
        detector,
        lambda: detector(graph.x, graph.edge_index, graph.edge_attr, graph.ptr),
        lambda: slow_gnn(detector, samples),
        samples,
    )
    # Every part of the detector is in use; a twin that agrees on zero would prove nothing.
    for name in (
        "project.0.weight",
        "first.conv.lin.weight",
        "first.conv.gate",
        "second.conv.nn.0.weight",
        "second.conv.gate",
    ):
        assert gradients[name].abs().max() > 1e-4


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


def test_weights_without_gate_and_scale_are_refused() -> None:
    names = ("scale_weights.mean", "scale_weights.std", "first.conv.gate", "second.conv.gate")
    old = {key: value for key, value in make_detector().state_dict().items() if key not in names}
    with pytest.raises(RuntimeError, match="Missing key") as failure:
        make_detector().load_state_dict(old)
    assert all(name in str(failure.value) for name in names)


def test_without_gate_and_scale_it_is_published_gine() -> None:
    samples = odd_samples()
    graph = graph_batch(samples)
    detector, published = make_detector(), make_detector()
    for one in (detector, published):
        one.scale_weights = torch.nn.Identity()  # type: ignore[assignment]
    for gated, plain in zip(
        (detector.first, detector.second), (published.first, published.second), strict=True
    ):
        with torch.no_grad():
            gated.conv.gate.zero_()
        plain.conv = GINEConv(plain.conv.nn, train_eps=True, edge_dim=1)  # type: ignore[assignment]
    weights = detector.state_dict()
    published.load_state_dict({key: weights[key] for key in published.state_dict()})
    arguments = (graph.x, graph.edge_index, graph.edge_attr, graph.ptr)
    torch.testing.assert_close(detector(*arguments), published(*arguments), rtol=0, atol=1e-6)


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
