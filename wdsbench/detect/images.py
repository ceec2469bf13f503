"""Detectors on image patches: the score is the error of a reconstruction learned without labels.

Both take patches float32 ``[B, C, P, P]`` in 0 .. 1, as the layout ``image`` decodes them, so no
input scale is fitted. `ConvAutoencoder` is trained by gradient descent; `PCADetector` is the
closed-form control: the best linear reconstruction with as many numbers per patch.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from wdsbench.detect.registry import DetectorShape
from wdsbench.errors import DetectorError

#: Channels after the first convolution; every further one doubles them.
FIRST_CHANNELS = 32
#: Columns beside the components in the iteration of `PCAFit` (Halko et al. recommend 5 to 10).
OVERSAMPLING = 10
#: Passes of `PCAFit` over the training patches: one for the mean, then three iterations.
PASSES = 4
#: Largest matrix of `PCAFit`, in float32 values: 64 MiB. With 128 components three-channel patches
#: of 128 x 128 fit without pooling.
MATRIX_VALUES = 1 << 24
# Directions with less than this share of the largest variance are rounding errors of float32.
LEAST_VARIANCE = 1e-6


class Reconstruction(nn.Module):
    """A detector whose score is the mean squared error of `reconstruct`."""

    def reconstruct(self, image: Tensor) -> Tensor:
        """Return the reconstruction of ``image`` (float32 ``[B, C, P, P]``), of the same shape."""
        raise NotImplementedError

    def error_map(self, image: Tensor) -> Tensor:
        """Return the mean squared error over channels of every pixel, float32 ``[B, P, P]``."""
        return (image - self.reconstruct(image).float()).square().mean(dim=1)

    def forward(self, image: Tensor) -> Tensor:
        """Return the score of every patch, float32 ``[B]``: the mean of its `error_map`."""
        return self.error_map(image).mean(dim=(1, 2))


class ConvAutoencoder(Reconstruction):
    """A convolutional autoencoder with a linear latent.

    ``depth`` convolutions (3 x 3, stride 2, 32 channels, then doubled) with ReLU, a linear layer to
    ``hidden`` numbers, and the mirror image with transposed convolutions and a sigmoid.
    """

    def __init__(self, shape: DetectorShape) -> None:
        """Build for C = ``shape.num_layers`` channels of P = ``shape.num_features`` pixels; raise
        DetectorError if P is not a multiple of ``2 ** shape.depth``.
        """
        super().__init__()
        pixels, depth = shape.num_features, shape.depth
        step = 2**depth
        if pixels % step:
            fitting = max(d for d in range(depth) if pixels % 2**d == 0)
            remedy = f"train with --depth {fitting}, or " if fitting else ""
            raise DetectorError(
                f"patches are {pixels} x {pixels} pixels, which is not a multiple of {step} (2 to"
                f" the power of depth {depth}); {remedy}pack with a --patch-size that is"
            )
        channels = [shape.num_layers, *(FIRST_CHANNELS << stage for stage in range(depth))]
        inner = (channels[-1], pixels // step, pixels // step)
        size = inner[0] * inner[1] * inner[2]
        down: list[nn.Module] = []
        for before, after in pairwise(channels):
            down += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        self.encoder = nn.Sequential(*down, nn.Flatten(), nn.Linear(size, shape.hidden))
        up: list[nn.Module] = [nn.Linear(shape.hidden, size), nn.Unflatten(1, inner)]
        for before, after in zip(channels[:0:-1], channels[-2::-1], strict=True):
            up.append(nn.ConvTranspose2d(before, after, 3, stride=2, padding=1, output_padding=1))
            up.append(nn.ReLU())
        up[-1] = nn.Sigmoid()
        self.decoder = nn.Sequential(*up)

    def reconstruct(self, image: Tensor) -> Tensor:
        """Return the reconstruction of ``image``; see `Reconstruction`."""
        found: Tensor = self.decoder(self.encoder(image))
        return found


class PCADetector(Reconstruction):
    """Projects patches on the mean and the leading ``hidden`` components of the training patches.

    If a matrix of `PCAFit` would have more than `MATRIX_VALUES` values, patches are average-pooled
    by the smallest divisor of P with which it does not; components are then constant in each
    block, and the error still is that of every pixel.

    Attributes:
        mean: float32 ``[D]``, D = C * (P / pool) ** 2.
        components: float32 ``[k, D]``, orthonormal rows, or zeros where the training patches span
            fewer dimensions.
    """

    def __init__(self, shape: DetectorShape) -> None:
        super().__init__()
        channels, pixels = shape.num_layers, shape.num_features
        columns = shape.hidden + OVERSAMPLING
        self.pool = next(
            block
            for block in range(1, pixels + 1)
            if pixels % block == 0
            and (channels * (pixels // block) ** 2 * columns <= MATRIX_VALUES or block == pixels)
        )
        self.grid = (channels, pixels // self.pool, pixels // self.pool)
        size = channels * self.grid[1] ** 2
        self.mean = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.components = nn.Parameter(
            torch.zeros(min(shape.hidden, size), size), requires_grad=False
        )

    def rows(self, image: Tensor) -> Tensor:
        """Return ``image`` (``[B, C, P, P]``) as rows float32 ``[B, D]``."""
        pooled = functional.avg_pool2d(image, self.pool) if self.pool > 1 else image
        return pooled.flatten(1)

    def reconstruct(self, image: Tensor) -> Tensor:
        """Return the reconstruction of ``image``; see `Reconstruction`."""
        with torch.autocast(image.device.type, enabled=False):  # differences of near numbers
            centred = self.rows(image) - self.mean
            rows = centred @ self.components.T @ self.components + self.mean
        found = rows.view(-1, *self.grid)
        return found.repeat_interleave(self.pool, 2).repeat_interleave(self.pool, 3)


class PCAFit:
    """Fits a `PCADetector` by passes over the patches, in any order: one for the mean, then
    those of the randomised subspace iteration, `PASSES` in all.

    Memory: two matrices float32 ``[D, k + OVERSAMPLING]`` of at most `MATRIX_VALUES` values each
    (four at the end of a pass) for any number of patches. Sums of several processes can be added
    before each `finish`.

    Source: Halko, Martinsson, Tropp, "Finding structure with randomness" (2011), algorithm 4.4.
    """

    def __init__(self, detector: PCADetector) -> None:
        """Start with random columns from torch's generator of the CPU."""
        self.detector = detector
        mean = detector.mean
        columns = min(len(detector.components) + OVERSAMPLING, mean.numel())
        self._basis = torch.randn(mean.numel(), columns).to(mean.device)
        self._pass = 0
        #: The sums of the pass: those of the rows, float64 ``[D]``; later float32 ``[D, k + ...]``.
        self.sums = torch.zeros_like(mean, dtype=torch.float64)

    def update(self, image: Tensor) -> None:
        """Add patches ``[B, C, P, P]``; nothing of ``image`` is kept."""
        rows = self.detector.rows(image)
        if self._pass == 0:
            self.sums += rows.sum(dim=0, dtype=torch.float64)
        else:
            centred = rows - self.detector.mean
            self.sums.addmm_(centred.T, centred @ self._basis)

    def finish(self, count: int) -> None:
        """End a pass over ``count`` patches; after the last one the detector has its weights.
        DetectorError is raised if a patch held a value that is not finite.
        """
        sums = self.sums.div_(count)
        if not bool(torch.isfinite(sums).all()):
            raise DetectorError("the training patches hold values that are not finite; pack again")
        self._pass += 1
        if self._pass == 1:
            self.detector.mean.copy_(sums)
        elif self._pass < PASSES:
            self._basis = torch.linalg.qr(sums).Q
        else:
            self._set_components(sums)
        self.sums = torch.zeros_like(self._basis)

    def _set_components(self, product: Tensor) -> None:
        """Set the eigenvectors of the covariance within the basis; ``product`` is both's."""
        inner = (self._basis.T @ product).double().cpu()
        variances, vectors = torch.linalg.eigh((inner + inner.T) / 2)
        leading = torch.arange(len(variances) - 1, -1, -1)[: len(self.detector.components)]
        kept = variances[leading] > LEAST_VARIANCE * variances[-1].clamp(min=0)
        vectors = (vectors[:, leading] * kept).to(product)
        self.detector.components.copy_((self._basis @ vectors).T)
