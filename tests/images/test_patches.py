"""Resized patches against torch, tiles against slices, ranges against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import random_pixels, write_tiff

from wdsbench.images.files import open_image
from wdsbench.images.patches import (
    band_rows,
    band_tiles,
    channel_ranges,
    joined_ranges,
    resized,
    tile_bands,
    tile_places,
)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("shape", [(50, 70), (16, 16), (9, 5), (300, 17), (1, 1)])
def test_resized_as_torch_does(dtype: str, shape: tuple[int, int], tmp_path: Path) -> None:
    pixels = random_pixels(*shape, dtype=dtype)
    wide = torch.from_numpy(np.moveaxis(pixels, -1, 0).astype(np.float32))[None]
    expected = torch.nn.functional.interpolate(
        wide, size=(16, 16), mode="bilinear", align_corners=False
    )[0].numpy()
    with open_image(write_tiff(tmp_path / "a.tif", pixels, compression="lzw")) as source:
        found = resized(source, 16, (0, 1, 2))
    assert found.dtype == pixels.dtype
    if dtype == "float32":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)
    else:  # a value that is nearly a half is rounded to either side
        assert np.abs(found - expected).max() <= 0.502
        assert (found == np.rint(expected)).mean() > 0.99


def test_a_constant_float_stays_constant(tmp_path: Path) -> None:
    pixels = np.full((37, 41, 1), 0.1, np.float32)
    with open_image(write_tiff(tmp_path / "a.tif", pixels)) as source:
        assert len(np.unique(resized(source, 16, (0,)))) == 1


@pytest.mark.parametrize("stride", [16, 10, 1])
@pytest.mark.parametrize("band_bytes", [10**9, 1])
def test_tiles_cover_the_image(stride: int, band_bytes: int, tmp_path: Path) -> None:
    pixels = random_pixels(50, 37)
    covered = np.zeros((50, 37), int)
    places = tile_places(50, 37, 16, stride)
    with open_image(write_tiff(tmp_path / "a.tif", pixels, rowsperstrip=5)) as source:
        bands = tile_bands(source, 16, stride, band_bytes)
        found = []
        for band in bands:
            rows = source.read((2, 0), band_rows(source, 16, stride, band))
            found += band_tiles(rows, source, 16, stride, band)
    assert len(bands) == (1 if band_bytes > 1 else len({y for y, _ in places}))
    assert [number for number, *_ in found] == list(range(len(places)))
    for (_, y, x, tile), place in zip(found, places, strict=True):
        assert (y, x) == place
        expected = pixels[y : y + 16, x : x + 16][..., [2, 0]]
        np.testing.assert_array_equal(tile, np.moveaxis(expected, -1, 0))
        covered[y : y + 16, x : x + 16] += 1
    assert covered.min() >= 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("planar", [False, True])
def test_ranges(channels: int, planar: bool, tmp_path: Path) -> None:
    pixels = random_pixels(channels=channels, dtype="int16")
    expected = np.stack([pixels.min(axis=(0, 1)), pixels.max(axis=(0, 1))], axis=1)
    with open_image(write_tiff(tmp_path / "a.tif", pixels, planar=planar)) as source:
        parts = [source.read(range(channels), rows) for rows in (range(20), range(20, 50))]
    np.testing.assert_array_equal(joined_ranges([channel_ranges(p) for p in parts]), expected)
