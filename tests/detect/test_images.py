"""The autoencoder and the principal components of image patches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wdsbench.detect import images
from wdsbench.detect.images import PASSES, ConvAutoencoder, PCADetector, PCAFit, Reconstruction
from wdsbench.detect.registry import DetectorShape
from wdsbench.errors import DetectorError


@pytest.mark.parametrize(("channels", "pixels", "depth"), [(1, 16, 3), (4, 24, 2), (3, 6, 1)])
def test_shapes_of_the_autoencoder(channels: int, pixels: int, depth: int) -> None:
    torch.manual_seed(0)
    detector = ConvAutoencoder(DetectorShape(channels, pixels, hidden=5, depth=depth)).eval()
    image = torch.rand(3, channels, pixels, pixels)
    found = detector.reconstruct(image)
    assert found.shape == image.shape
    assert 0 <= found.min() <= found.max() <= 1
    widths = [m.out_channels for m in detector.encoder if isinstance(m, torch.nn.Conv2d)]
    assert widths == [32, 64, 128][:depth]
    assert detector.encoder[-1].out_features == 5
    errors = detector.error_map(image)
    torch.testing.assert_close(errors, (image - found).square().mean(1))
    torch.testing.assert_close(detector(image), errors.mean((1, 2)))
    alone = torch.cat([detector(image[place : place + 1]) for place in range(3)])
    torch.testing.assert_close(detector(image), alone)


def test_sizes_that_do_not_halve_are_refused() -> None:
    with pytest.raises(DetectorError, match=r"20 x 20 pixels.* multiple of 8 .*--depth 2, or pack"):
        ConvAutoencoder(DetectorShape(3, 20, depth=3))
    with pytest.raises(DetectorError, match=r"of 2 \(2 to the power of depth 1\); pack with"):
        ConvAutoencoder(DetectorShape(3, 21, depth=1))


def patches(count: int = 300) -> Tensor:
    """Return patches ``[count, 2, 8, 8]`` of six strong directions and weak noise."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(count, 6, generator=generator) * torch.tensor([9.0, 6, 4, 3, 2, 1])
    rows = weights @ torch.randn(6, 128, generator=generator) / 100 + 0.5
    return (rows + 0.002 * torch.randn(count, 128, generator=generator)).view(-1, 2, 8, 8)


def fitted(image: Tensor, hidden: int, parts: int = 1) -> PCADetector:
    """Fit on batches that are divided among ``parts`` processes, which add their sums."""
    channels, pixels = image.shape[1:3]
    detector = PCADetector(DetectorShape(channels, pixels, hidden=hidden))
    torch.manual_seed(3)
    work = PCAFit(detector)
    for _ in range(PASSES):
        sums = torch.zeros_like(work.sums)
        for part in image.chunk(parts):
            work.sums.zero_()
            for batch in part.split(64):
                work.update(batch)
                work.update(batch[:0])  # a batch of anomalous patches, which are left out
            sums += work.sums
        work.sums = sums
        work.finish(len(image))
    return detector


def test_components_are_those_of_the_covariance() -> None:
    image = patches()
    detector = fitted(image, 6)
    rows = image.view(len(image), -1).double()
    centred = rows - rows.mean(0)
    variances, vectors = torch.linalg.eigh(centred.T @ centred / len(rows))
    torch.testing.assert_close(detector.mean.double(), rows.mean(0), rtol=0, atol=1e-6)
    overlap = (detector.components.double() @ vectors[:, -6:]).square().sum(1)
    torch.testing.assert_close(overlap, torch.ones(6).double(), rtol=0, atol=1e-3)
    left = float(variances[:-6].sum()) / rows.shape[1]
    assert float(detector(image).mean()) == pytest.approx(left, rel=1e-3)


def test_sums_of_two_processes_are_those_of_one() -> None:
    image = patches()
    one, two = fitted(image, 6), fitted(image, 6, parts=2)
    torch.testing.assert_close(one(image), two(image), rtol=1e-3, atol=1e-7)


def test_few_or_constant_patches_leave_no_error() -> None:
    few = patches(3)
    detector = fitted(few, 20)
    assert detector(few).max() < 1e-9
    assert int(detector.components.any(dim=1).sum()) == 2  # three points span two directions
    constant = torch.zeros(10, 2, 8, 8)
    detector = fitted(constant, 4)
    assert not detector(constant).any()
    assert not detector.components.any()  # what differs from the constant is an error
    with pytest.raises(DetectorError, match="not finite"):
        fitted(constant.fill_(torch.nan), 4)


def test_large_patches_are_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    image = patches()
    monkeypatch.setattr(images, "MATRIX_VALUES", 128 // 4 * (6 + images.OVERSAMPLING))
    detector = fitted(image, 6)
    assert detector.pool == 2
    assert detector.components.shape == (6, 32)
    found = detector.reconstruct(image)
    assert found.shape == image.shape
    torch.testing.assert_close(found[..., ::2], found[..., 1::2])  # constant in each block
    # The components lose nothing of the blocks' means.
    torch.testing.assert_close(detector.rows(found), detector.rows(image), rtol=0, atol=0.02)


def test_scores_are_for_what_reconstructs() -> None:
    with pytest.raises(NotImplementedError):
        Reconstruction()(torch.zeros(1, 1, 2, 2))
