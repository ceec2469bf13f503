"""The linear probe applies what it was given to the layer it was given."""

from __future__ import annotations

import torch

from wdsbench.detect.probe import LogisticProbe


def test_probe_reads_one_layer() -> None:
    probe = LogisticProbe(2, num_layers=3)
    probe.scale.set_moments(torch.ones(3, 2), torch.full((3, 2), 2.0))
    probe.set_weights(1, torch.tensor([1.0, -1.0], dtype=torch.float64), 0.5)
    x = torch.zeros(1, 3, 2)
    x[0, 1] = torch.tensor([5.0, 3.0])
    # Standardised: (2, 1); 2 - 1 + 0.5.
    assert probe(x).tolist() == [1.5]
    assert probe.state_dict()["layer"] == 1
