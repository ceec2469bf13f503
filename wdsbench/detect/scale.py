"""Standardises the inputs of detectors to zero mean and unit variance.

States are standardised per layer and feature: layers differ in scale by orders of magnitude (the
residual stream grows, the final norm reduces it), and so do features within a layer.

Attention weights are standardised after taking their logarithm, because they span orders of
magnitude: a few large ones and many small ones.

The moments are computed in one streaming pass each over the training split with ``O(L * D)``
memory, and are buffers of the detector, saved with its weights.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from wdsbench.errors import DetectorError

# States are clipped to this many standard deviations. The first tokens of a sequence are attention
# sinks with activations up to a thousand times the usual.
LIMIT = 10.0
# A feature whose spread is within float32 rounding of its mean is constant; dividing by it would
# amplify noise.
RELATIVE_SPREAD = 1e-6
# The smallest normal float16: below it a stored weight loses digits, and its logarithm is mostly
# rounding error.
LEAST_WEIGHT = 2.0**-14
# Logarithms of weights are clipped closer: far below the mean are tokens that are hardly attended
# to, where a product of state and weight (the gate of `wdsbench.detect.gnn`) must not be largest.
WEIGHT_LIMIT = 3.0


class RunningMoments:
    """Mean and variance over a stream of batches, merged pairwise in float64.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances" (1979).
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self.squares: Tensor | None = None

    def update(self, x: Tensor) -> None:
        """Add the samples of ``x`` (float32 ``[B, L, D]``); nothing of ``x`` is kept."""
        added = x.shape[0]
        if added == 0:
            return
        variance, mean = torch.var_mean(x.detach(), dim=0, correction=0)
        self._merge(added, mean.double(), variance.double() * added)

    @classmethod
    def joined(cls, parts: Iterable[RunningMoments]) -> RunningMoments:
        """Return the moments over the samples of all ``parts``."""
        whole = cls()
        for part in parts:
            if part.mean is not None and part.squares is not None:
                whole._merge(part.count, part.mean, part.squares)
        return whole

    def _merge(self, added: int, mean: Tensor, squares: Tensor) -> None:
        if self.mean is None or self.squares is None:
            self.count, self.mean, self.squares = added, mean, squares
            return
        total = self.count + added
        shift = mean - self.mean
        self.mean = self.mean + shift * (added / total)
        self.squares = self.squares + squares + shift.square() * (self.count * added / total)
        self.count = total

    def finish(self) -> tuple[Tensor, Tensor]:
        """Return (mean, std), float32 ``[L, D]``; std is 1 where a feature is constant.

        Raises:
            DetectorError: There was no sample, or a layer holds a value that is not finite.
        """
        if self.mean is None or self.squares is None:
            raise DetectorError("no training sample to fit the input scale on; pack more traces")
        damaged = ~torch.isfinite(self.squares).all(dim=1)
        if bool(damaged.any()):
            layers = torch.nonzero(damaged).flatten().tolist()
            raise DetectorError(
                f"layers {layers} of the training states hold values that are not finite; "
                "repack the data set or leave these layers out"
            )
        std = (self.squares / self.count).sqrt()
        constant = std <= RELATIVE_SPREAD * self.mean.abs()
        return self.mean.float(), torch.where(constant, 1.0, std).float()


class Standardise(nn.Module):
    """Subtracts a layer's mean and divides by its standard deviation, feature by feature.

    Attributes:
        mean: float32 ``[L, D]`` buffer; zeros until `set_moments`.
        std: The same; ones until `set_moments`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, num_layers: int, num_features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_layers, num_features))
        self.register_buffer("std", torch.ones(num_layers, num_features))

    def set_moments(self, mean: Tensor, std: Tensor) -> None:
        """Copy ``mean`` and ``std`` (float32 ``[L, D]``) into the buffers."""
        if mean.shape != self.mean.shape or std.shape != self.std.shape:
            raise ValueError(
                f"moments of shapes {tuple(mean.shape)} and {tuple(std.shape)} do not fit a "
                f"detector of {tuple(self.mean.shape)} (layers, features)"
            )
        self.mean.copy_(mean)
        self.std.copy_(std)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` (float32 ``[B, L, D]``) standardised."""
        return ((x - self.mean) / self.std).clamp(-LIMIT, LIMIT)

    def rows(self, x: Tensor, layer: Tensor) -> Tensor:
        """Return the rows of ``x`` (float32 ``[N, D]``), states of ``layer`` (int64 ``[N]``),
        standardised.
        """
        return ((x - self.mean[layer]) / self.std[layer]).clamp(-LIMIT, LIMIT)


class ScaleWeights(nn.Module):
    """Standardises the logarithm of attention weights, with one scale for all layers.

    Attributes:
        mean: float32 ``[1]`` buffer; zero until `set_moments`.
        std: The same; one until `set_moments`.
        logarithmic: bool ``[]`` buffer, always True; checked when weights are loaded.
    """

    mean: Tensor
    std: Tensor
    logarithmic: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("std", torch.ones(1))
        self.register_buffer("logarithmic", torch.tensor(True))
        self.register_load_state_dict_post_hook(_require_logarithmic)  # type: ignore[no-untyped-call]

    def set_moments(self, mean: Tensor, std: Tensor) -> None:
        """Copy mean and std of `log_weights` (float32 ``[1, 1]``) into the buffers."""
        self.mean.copy_(mean.view(1))
        self.std.copy_(std.view(1))

    def forward(self, weights: Tensor) -> Tensor:
        """Return ``weights`` (float32 ``[E, 1]``) standardised."""
        values = log_weights(weights)
        return ((values - self.mean) / self.std).clamp(-WEIGHT_LIMIT, WEIGHT_LIMIT)


def _require_logarithmic(module: nn.Module, _: object) -> None:
    if not module.get_buffer("logarithmic"):
        raise RuntimeError("scale_weights.logarithmic is False, must be True; train again")


def log_weights(weights: Tensor) -> Tensor:
    """Return the natural logarithm of attention weights, clipped below at `LEAST_WEIGHT`."""
    return weights.clamp(min=LEAST_WEIGHT).log()
