"""A linear probe on one layer's state of the last answer token: the simplest use of states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdsbench.detect.scale import Standardise


class LogisticProbe(nn.Module):
    """Logistic regression on one layer's standardised state.

    Its weights are fitted elsewhere (by scikit-learn), this module only applies them.

    Args:
        num_features: D, width of a state.
        num_layers: L, layers of the traces.
    """

    layer: Tensor

    def __init__(self, num_features: int, *, num_layers: int) -> None:
        super().__init__()
        self.scale = Standardise(num_layers, num_features)
        self.linear = nn.Linear(num_features, 1)
        self.register_buffer("layer", torch.zeros((), dtype=torch.long))

    def set_weights(self, layer: int, weight: Tensor, bias: float) -> None:
        """Read layer ``layer`` with ``weight`` (float ``[D]``) and ``bias`` from now on."""
        with torch.no_grad():
            self.layer.fill_(layer)
            self.linear.weight.copy_(weight.view(1, -1))
            self.linear.bias.fill_(bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits float32 ``[B]`` of ``hidden`` float32 ``[B, L, D]``."""
        state = self.scale(hidden).index_select(1, self.layer.view(1)).squeeze(1)
        logits: Tensor = self.linear(state).squeeze(-1)
        return logits
