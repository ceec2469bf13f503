"""Probes on one layer's state of one token.

Layer and token are chosen on validation (`wdsbench.train.probe`); the modules are given the states
of that token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from wdsbench.detect.registry import DetectorShape
from wdsbench.detect.scale import Standardise

if TYPE_CHECKING:
    from wdsbench.records import Batch

#: Candidate tokens, in order of preference among equals. All but the first need the length of the
#: prompt. ``mean_answer`` is the mean of the raw states over the answer's tokens.
PROBE_TOKENS = ("last_answer", "first_answer", "mean_answer", "last_prompt")


def token_states(batch: Batch, token: str) -> tuple[Tensor, Tensor]:
    """Return the states of one token of every sample, and the mask of samples that have it.

    Args:
        batch: Batch with ``hidden`` of one token per sample (``[B, L, D]``, which must be the token
            asked for), or jagged (``[L, sum T, D]``) up to the last token of each sequence:
            ``tokens="all"``, ``"answer"``, or the last k.
        token: One of `PROBE_TOKENS`.

    Returns:
        states: float32 ``[B, L, D]``; zeros if the sample has no such token.
        present: bool ``[B]``; False for an empty answer or prompt.
    """
    assert batch.hidden is not None, "the loader was not asked for hidden states"
    hidden = batch.hidden
    if batch.offsets is None:
        return hidden, torch.ones(len(batch), dtype=torch.bool, device=hidden.device)
    offsets = batch.offsets.tolist()
    answers = (batch.token_count - batch.prompt_length).tolist()
    prompts = batch.prompt_length.tolist()
    states = hidden.new_zeros(len(batch), hidden.shape[0], hidden.shape[2])
    present = []
    for place, (answer, prompt) in enumerate(zip(answers, prompts, strict=True)):
        start, end = offsets[place : place + 2]
        wanted = _wanted(token, end, answer, prompt)
        present.append(wanted is not None and wanted[0] < wanted[1])
        if wanted is not None and present[-1]:
            assert wanted[0] >= start, f"the loader was not asked for token {token}"
            states[place] = hidden[:, wanted[0] : wanted[1]].mean(dim=1)
    return states, torch.tensor(present, dtype=torch.bool, device=hidden.device)


def _wanted(token: str, end: int, answer: int, prompt: int) -> tuple[int, int] | None:
    """Return the half-open range of rows to average; None if there is no such token."""
    if token == "last_answer":
        return end - 1, end
    assert prompt >= 0, "the loader gives no unknown prompt length"
    first = end - answer
    if token == "last_prompt":
        return (first - 1, first) if prompt > 0 else None
    return first, (min(first + 1, end) if token == "first_answer" else end)


class LogisticProbe(nn.Module):
    """Logistic regression on the standardised state of one layer among the given ones.

    Its weights are fitted elsewhere (by scikit-learn), this module only applies them.
    """

    layer: Tensor

    def __init__(self, shape: DetectorShape) -> None:
        super().__init__()
        self.scale = Standardise(shape.num_layers, shape.num_features)
        self.linear = nn.Linear(shape.num_features, 1)
        self.register_buffer("layer", torch.zeros((), dtype=torch.long))

    def set_weights(self, layer: int, weight: Tensor, bias: float) -> None:
        """Set the layer, ``weight`` (float ``[D]``) and ``bias``."""
        with torch.no_grad():
            self.layer.fill_(layer)
            self.linear.weight.copy_(weight.view(1, -1))
            self.linear.bias.fill_(bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits float32 ``[B]`` of ``hidden`` float32 ``[B, L, D]``."""
        _require_shape(hidden, self.scale)
        state = self.scale(hidden).index_select(1, self.layer.view(1)).squeeze(1)
        logits: Tensor = self.linear(state).squeeze(-1)
        return logits


class MLPProbe(nn.Module):
    """One hidden layer of units on one layer's standardised state."""

    def __init__(self, shape: DetectorShape) -> None:
        super().__init__()
        self.scale = Standardise(1, shape.num_features)
        self.units = nn.Sequential(
            nn.Linear(shape.num_features, shape.hidden),
            nn.ReLU(),
            nn.Dropout(shape.dropout),
            nn.Linear(shape.hidden, 1),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits float32 ``[B]`` of ``hidden`` float32 ``[B, 1, D]``."""
        _require_shape(hidden, self.scale)
        return self.of_standardised(self.scale(hidden).squeeze(1))

    def of_standardised(self, states: Tensor) -> Tensor:
        """Return logits float32 ``[B]`` of standardised states float32 ``[B, D]``."""
        logits: Tensor = self.units(states).squeeze(-1)
        return logits


def _require_shape(hidden: Tensor, scale: Standardise) -> None:
    """Check that states have the detector's layers and features (broadcasting would hide it)."""
    if hidden.shape[1:] != scale.mean.shape:
        raise ValueError(
            f"states of {tuple(hidden.shape[1:])} (layers, features) do not fit a probe of "
            f"{tuple(scale.mean.shape)}; read the layers it was fitted on"
        )
