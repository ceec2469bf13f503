"""Closed-form numbers of attention maps, and the logistic regression on them.

For each layer and head, from the sketch of its map (self-attention ``a_ii``, diagonal of the
Laplacian, lookback ratio and entropy of every token):

    0   mean over answer tokens of ln a_ii       the map's log-determinant over the answer's length
    1   mean over answer tokens of d_ii - a_ii   diagonal of the Laplacian
    2   mean over answer tokens of the lookback ratio
    3   mean over answer tokens of the entropy, nats
    4-8 the five largest eigenvalues of the Laplacian of the whole sequence, largest first

A causal map is lower triangular, and so is its Laplacian: their eigenvalues are their diagonals,
and no eigenvalue is computed.

Source: 0: Sriramanan et al., LLM-Check (2024), attention score, which takes the answer's part of
    the map. 4-8: Binkowski et al., Hallucination detection in LLMs using spectral features of
    attention maps (2025), LapEigvals; theirs adds principal components, replaced here by the
    ridge penalty. 2: Chuang et al., Lookback Lens (2024), over the whole answer instead
    of a sliding span. 1 and 3 are our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from wdsbench.detect.registry import DetectorShape
from wdsbench.detect.scale import Standardise
from wdsbench.errors import DetectorError

if TYPE_CHECKING:
    from wdsbench.records import Batch

TOP_EIGENVALUES = 5
HEAD_FEATURES = 4 + TOP_EIGENVALUES
# Sketches are float16; a weight that was rounded to 0 is replaced by the smallest positive number.
LEAST_WEIGHT = 2.0**-24


def attention_features(batch: Batch) -> Tensor:
    """Return the numbers above, float32 ``[B, L * H, HEAD_FEATURES]``, heads of a layer together.

    If the answer is empty, the last token is used. The lookback of an empty prompt is 0. A sequence
    with fewer tokens than eigenvalues repeats its smallest.

    Raises:
        DetectorError: A prompt length is unknown, so that the answer's tokens are too.
    """
    assert batch.sketch is not None, "the loader was not asked for sketches"
    rows = []
    for key, sketch, prompt in zip(
        batch.keys, batch.sketch, batch.prompt_length.tolist(), strict=True
    ):
        if prompt < 0:
            raise DetectorError(
                f"not available: trace {key} has no known prompt length, so its answer's "
                "tokens are unknown; extract traces with prompt_length"
            )
        rows.append(_features(sketch, prompt).flatten(0, 1))
    return torch.stack(rows) if rows else torch.empty(0, 0, HEAD_FEATURES)


def _features(sketch: Tensor, prompt: int) -> Tensor:
    """Return float32 ``[L, H, HEAD_FEATURES]`` of a sketch ``[L, H, T, 4]``."""
    tokens = sketch.shape[2]
    self_attention, laplacian, lookback, entropy = sketch[:, :, min(prompt, tokens - 1) :].unbind(3)
    means = [
        self_attention.clamp(min=LEAST_WEIGHT).log().mean(dim=2),
        laplacian.mean(dim=2),
        lookback.nanmean(dim=2).nan_to_num(nan=0.0),
        entropy.mean(dim=2),
    ]
    top = sketch[..., 1].topk(min(TOP_EIGENVALUES, tokens), dim=2).values
    missing = top[:, :, -1:].expand(-1, -1, TOP_EIGENVALUES - top.shape[2])
    return torch.cat([torch.stack(means, dim=2), top, missing], dim=2)


class AttentionLogistic(nn.Module):
    """Logistic regression on the standardised numbers of all layers and heads.

    Its weights are fitted elsewhere (by scikit-learn), this module only applies them.

    Raises:
        DetectorError: No attention heads are stored.
    """

    def __init__(self, shape: DetectorShape) -> None:
        super().__init__()
        shape.require_heads()
        maps = shape.num_layers * shape.num_heads
        self.scale = Standardise(maps, HEAD_FEATURES)
        self.linear = nn.Linear(maps * HEAD_FEATURES, 1)

    def set_weights(self, weight: Tensor, bias: float) -> None:
        """Set ``weight`` (float ``[L * H * HEAD_FEATURES]``) and ``bias``."""
        with torch.no_grad():
            self.linear.weight.copy_(weight.view(1, -1))
            self.linear.bias.fill_(bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits float32 ``[B]`` of `attention_features`."""
        if features.shape[1:] != self.scale.mean.shape:
            raise ValueError(
                f"features of {tuple(features.shape[1:])} (layers x heads, numbers) do not fit a "
                f"detector of {tuple(self.scale.mean.shape)}; read as many layers and heads"
            )
        logits: Tensor = self.linear(self.scale(features).flatten(1)).squeeze(-1)
        return logits
