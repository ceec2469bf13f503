"""LSTM over the states of one token in all layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdsbench.detect.scale import Standardise


class LayerLSTM(nn.Module):
    """Two-layer bidirectional LSTM over the layer axis with one logit at its end.

    Args:
        num_features: Width of the sequence's elements.
        hidden: Width of each direction.
        depth: LSTM layers.
        dropout: On the input, between LSTM layers and before the logit.
    """

    def __init__(self, num_features: int, hidden: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.drop_input = nn.Dropout(dropout)
        self.lstm = nn.LSTM(
            num_features,
            hidden,
            num_layers=depth,
            bidirectional=True,
            batch_first=True,
            dropout=dropout if depth > 1 else 0.0,
        )
        self.norm = nn.LayerNorm(2 * hidden)
        self.drop_output = nn.Dropout(dropout)
        self.logit = nn.Linear(2 * hidden, 1)

    def forward(self, sequence: Tensor) -> Tensor:
        """Return logits float32 ``[B]`` of ``sequence`` float32 ``[B, L, F]``."""
        _, (final, _) = self.lstm(self.drop_input(sequence))
        # final is [2 * depth, B, hidden]; its last two are the top layer's end of each direction.
        ends = torch.cat([final[-2], final[-1]], dim=-1)
        logits: Tensor = self.logit(self.drop_output(self.norm(ends))).squeeze(-1)
        return logits


class LSTMDetector(nn.Module):
    """Bidirectional LSTM over the layers' last answer token.

    Args:
        num_features: D, width of a state.
        num_layers: L, layers of the traces (the input scale is kept per layer).
        hidden: Width of each LSTM direction.
        depth: LSTM layers.
        dropout: See `LayerLSTM`.
    """

    def __init__(
        self,
        num_features: int,
        *,
        num_layers: int,
        hidden: int = 64,
        depth: int = 2,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.scale = Standardise(num_layers, num_features)
        self.over_layers = LayerLSTM(num_features, hidden, depth, dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits float32 ``[B]`` of ``hidden`` float32 ``[B, L, D]``."""
        logits: Tensor = self.over_layers(self.scale(hidden))
        return logits
