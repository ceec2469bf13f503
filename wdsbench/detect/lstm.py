"""LSTM over the states of one token in all layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdsbench.detect.registry import DetectorShape
from wdsbench.detect.scale import Standardise


class LayerLSTM(nn.Module):
    """Bidirectional LSTM over the layer axis with one logit at its end; dropout is applied to its
    input, between its layers and before the logit.
    """

    def __init__(self, num_features: int, shape: DetectorShape) -> None:
        super().__init__()
        self.drop_input = nn.Dropout(shape.dropout)
        self.lstm = nn.LSTM(
            num_features,
            shape.hidden,
            num_layers=shape.depth,
            bidirectional=True,
            batch_first=True,
            dropout=shape.dropout if shape.depth > 1 else 0.0,
        )
        self.norm = nn.LayerNorm(2 * shape.hidden)
        self.drop_output = nn.Dropout(shape.dropout)
        self.logit = nn.Linear(2 * shape.hidden, 1)

    def forward(self, sequence: Tensor) -> Tensor:
        """Return logits float32 ``[B]`` of ``sequence`` float32 ``[B, L, F]``."""
        _, (final, _) = self.lstm(self.drop_input(sequence))
        # final is [2 * depth, B, hidden]; its last two are the top layer's end of each direction.
        ends = torch.cat([final[-2], final[-1]], dim=-1)
        logits: Tensor = self.logit(self.drop_output(self.norm(ends))).squeeze(-1)
        return logits


class LSTMDetector(nn.Module):
    """Bidirectional LSTM over the layers' last answer token."""

    def __init__(self, shape: DetectorShape) -> None:
        super().__init__()
        self.scale = Standardise(shape.num_layers, shape.num_features)
        self.over_layers = LayerLSTM(shape.num_features, shape)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits float32 ``[B]`` of ``hidden`` float32 ``[B, L, D]``."""
        logits: Tensor = self.over_layers(self.scale(hidden))
        return logits
