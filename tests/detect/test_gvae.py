"""The variational autoencoder over the union, against one graph after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from detect.slow import assert_twins, odd_samples, slow_gvae
from torch import Tensor
from train.planted import Sample, graph_batch, make_samples

from wdsbench.detect.gvae import LOG_VARIANCE_RANGE, GVAEDetector
from wdsbench.detect.registry import DetectorShape
from wdsbench.train.step import Penalised


def make_detector() -> GVAEDetector:
    torch.manual_seed(0)
    detector = GVAEDetector(DetectorShape(3, 8, hidden=12, dropout=0.0))
    detector.scale.set_moments(torch.randn(3, 8), torch.rand(3, 8) * 20 + 0.1)
    detector.scale_weights.set_moments(torch.tensor([[-1.5]]), torch.tensor([[0.8]]))
    return detector


def inputs(samples: list[Sample]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    graph = graph_batch(samples)
    return graph.x, graph.edge_index, graph.edge_attr, graph.ptr


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_union_equals_one_graph_after_the_other(dtype: str, tolerance: float) -> None:
    samples = odd_samples()
    detector = make_detector().to(getattr(torch, dtype))
    x, edge_index, edge_attr, ptr = inputs(samples)
    x, edge_attr = x.to(getattr(torch, dtype)), edge_attr.to(getattr(torch, dtype))
    noise = torch.randn(len(samples), 3, detector.num_latents, dtype=x.dtype)

    def fast() -> Tensor:
        return torch.stack(
            detector.forward_with_penalty(x, edge_index, edge_attr, ptr, noise=noise.flatten(0, 1))
        )

    gradients = assert_twins(
        detector, fast, lambda: slow_gvae(detector, samples, noise), samples, True, tolerance
    )
    assert all(gradient.abs().max() > 1e-6 for gradient in gradients.values())
    logits = detector(x, edge_index, edge_attr, ptr, noise.flatten(0, 1))
    torch.testing.assert_close(logits, fast()[0])


def test_evaluation_reads_the_mean_and_training_draws() -> None:
    detector, arguments = make_detector(), inputs(odd_samples())
    detector.train()
    torch.manual_seed(3)
    first, second = detector(*arguments), detector(*arguments)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(detector(*arguments), first)
    detector.eval()
    nothing = torch.zeros(7 * 3, detector.num_latents)
    assert torch.equal(detector(*arguments), detector(*arguments, noise=nothing))


def test_penalty_of_a_sample_is_its_own() -> None:
    samples, detector = make_samples(5, signal=1.0, seed=1), make_detector().eval()
    logits, penalty = detector.forward_with_penalty(*inputs(samples))
    alone = [detector.forward_with_penalty(*inputs([sample])) for sample in samples]
    torch.testing.assert_close(logits, torch.cat([one for one, _ in alone]), rtol=0, atol=1e-5)
    torch.testing.assert_close(penalty, torch.cat([one for _, one in alone]), rtol=0, atol=1e-5)
    assert penalty.shape == (5,)
    assert (penalty > 0).all()
    assert isinstance(detector, Penalised)


def test_latents_come_to_tell_the_attention_weights() -> None:
    # Strong and weak graphs, whose states say nothing of it: only the latent can.
    samples = []
    for number, sample in enumerate(make_samples(40, signal=0.0, seed=2)):
        weight = np.float32(0.9 if number % 2 else 0.1)
        edges = [(index, np.full_like(weights, weight)) for index, weights in sample.edges]
        samples.append(replace(sample, edges=edges))
    detector, arguments = make_detector(), inputs(samples)
    optimizer = torch.optim.Adam(detector.parameters(), lr=1e-2)
    for _ in range(60):
        penalty = detector.forward_with_penalty(*arguments)[1].mean()
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
    with torch.no_grad():
        encoded = detector._encode(*arguments)
        edges = arguments[1:3]
        own = detector._weights_error(encoded, encoded.mean, *edges).mean()
        # One sample on: the latent of a graph of the other kind.
        others = detector._weights_error(encoded, encoded.mean.roll(3, dims=0), *edges).mean()
    assert own < 0.4  # the entropy of a coin of 0.1 is 0.325, of one of 0.5 0.693
    assert others > 1


def test_log_variance_is_bounded() -> None:
    detector = make_detector()
    low, high = LOG_VARIANCE_RANGE
    for bias, bound in ((-1e6, low), (1e6, high)):
        torch.nn.init.constant_(detector.to_log_variance.bias, bias)
        assert (detector._encode(*inputs(odd_samples())).log_variance == bound).all()
        assert torch.isfinite(
            torch.stack(detector.forward_with_penalty(*inputs(odd_samples())))
        ).all()


def test_graphs_that_are_not_whole_samples_are_refused() -> None:
    x, edge_index, edge_attr, ptr = inputs(make_samples(2, signal=1.0, seed=1))
    with pytest.raises(ValueError, match="5 graphs are not whole samples of 3 layers"):
        make_detector()(x, edge_index, edge_attr, ptr[:-1])
