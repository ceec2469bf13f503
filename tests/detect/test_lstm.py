"""The LSTM over layers."""

from __future__ import annotations

import torch

from wdsbench.detect.lstm import LSTMDetector
from wdsbench.detect.registry import DetectorShape


def make_detector() -> LSTMDetector:
    torch.manual_seed(0)
    return LSTMDetector(DetectorShape(4, 5, hidden=6)).eval()


def test_one_logit_per_sample() -> None:
    logits = make_detector()(torch.randn(3, 4, 5))
    assert logits.shape == (3,)
    assert logits.dtype == torch.float32


def test_samples_of_a_batch_do_not_touch_each_other() -> None:
    detector, x = make_detector(), torch.randn(3, 4, 5)
    alone = torch.cat([detector(x[place : place + 1]) for place in range(3)])
    torch.testing.assert_close(detector(x), alone, rtol=0, atol=1e-6)


def test_every_layer_and_their_order_matter() -> None:
    detector, x = make_detector(), torch.randn(1, 4, 5)
    for layer in range(4):
        changed = x.clone()
        changed[:, layer] += 1
        assert not torch.allclose(detector(changed), detector(x))
    assert not torch.allclose(detector(x.flip(1)), detector(x))


def test_it_has_two_bidirectional_layers() -> None:
    lstm = make_detector().over_layers.lstm
    assert lstm.num_layers == 2
    assert lstm.bidirectional
