"""Image files that tests write, by tifffile and Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray


def random_pixels(
    height: int = 50, width: int = 70, channels: int = 3, dtype: str = "uint8", seed: int = 0
) -> NDArray[Any]:
    """Return ``[height, width, channels]`` random values over most of the dtype's range."""
    rng = np.random.default_rng(seed)
    shape = (height, width, channels)
    if np.dtype(dtype).kind == "f":
        return (rng.random(shape) * 1000 - 200).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def write_tiff(path: Path, pixels: NDArray[Any], **options: Any) -> Path:
    """Write ``[H, W, C]`` as one page, interleaved unless ``planar``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options.setdefault("photometric", "minisblack")
    planar = options.pop("planar", False)
    if planar:
        pixels = np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    options["planarconfig"] = "separate" if planar else "contig"
    if pixels.shape[0 if planar else -1] == 1:
        pixels = pixels[0] if planar else pixels[..., 0]
        del options["planarconfig"]
    tifffile.imwrite(path, pixels, **options)
    return path
