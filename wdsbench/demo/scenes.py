"""Synthetic multispectral scenes with planted anomalies, and the label of every tile.

A scene mixes the spectra of a few land covers by smooth fields and adds sensor noise. An anomaly is
an ellipse whose spectrum is that of no cover, dim enough not to change the range of its scene.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from wdsbench.files import write_whole

CHANNELS = 4
_COVERS = 5
#: From one value of the smooth fields to the next, in pixels.
_SMOOTH_PIXELS = 48
_NOISE = 0.01
_FULL_SCALE = 20_000
#: A tile is anomalous if at least this share of its pixels is.
_LEAST_SHARE = 0.02


def write_scenes(
    folder: Path, labels: Path, scenes: int, pixels: int, tile: int, seed: int
) -> None:
    """Write ``scenes`` uint16 TIFF files of ``[pixels, pixels, 4]`` to ``folder``, every second one
    with anomalies, and the labels of their tiles of ``tile`` pixels to the CSV ``labels``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    spectra = rng.uniform(0.2, 0.8, (_COVERS, CHANNELS))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "tile", "label"])
    for number in range(scenes):
        image, mask = _scene(rng, spectra, pixels, anomalies=6 if number % 2 else 0)
        name = f"scene-{number:03d}.tif"
        tifffile.imwrite(
            folder / name,
            image,
            photometric="minisblack",
            planarconfig="contig",
            compression="zlib",
            tile=(256, 256),
        )
        side = pixels // tile
        share = mask.reshape(side, tile, side, tile).mean(axis=(1, 3)).ravel()
        for place, value in enumerate(share.tolist()):
            writer.writerow([name, place, int(value >= _LEAST_SHARE)])
    write_whole(labels, text.getvalue().encode())


def _scene(
    rng: np.random.Generator, spectra: NDArray[Any], pixels: int, anomalies: int
) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Return one scene ``[pixels, pixels, 4]`` and where its anomalies are."""
    shares = np.exp(3 * np.stack([_smooth(rng, pixels) for _ in spectra], axis=-1))
    shares /= shares.sum(axis=-1, keepdims=True)
    brightness = 1 + 0.15 * _smooth(rng, pixels)[..., None]
    scene = shares @ spectra * brightness
    mask = np.zeros((pixels, pixels), bool)
    y, x = np.mgrid[:pixels, :pixels]
    for _ in range(anomalies):
        (top, left), (a, b) = rng.uniform(0.1, 0.9, 2) * pixels, rng.uniform(6, 14, 2)
        inside = ((y - top) / a) ** 2 + ((x - left) / b) ** 2 <= 1
        # The mean brightness of the place, with channels in another order than in any cover.
        scene[inside] = scene[inside].mean() * (1 + 0.35 * np.resize([1, -1], CHANNELS))
        mask |= inside
    scene += _NOISE * rng.standard_normal(scene.shape, np.float32)
    return (scene.clip(0, 2) / 2 * _FULL_SCALE).round().astype(np.uint16), mask


def _smooth(rng: np.random.Generator, pixels: int) -> NDArray[np.float32]:
    """Return a smooth random field ``[pixels, pixels]`` of mean 0 and standard deviation 1."""
    grid = rng.normal(size=(pixels // _SMOOTH_PIXELS + 2,) * 2).astype(np.float32)
    field = np.asarray(Image.fromarray(grid).resize((pixels, pixels), Image.Resampling.BICUBIC))
    smooth: NDArray[np.float32] = (field - field.mean()) / field.std()
    return smooth
