"""Patches of an image: the whole image resized, or tiles; and ranges of values."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.images.source import ImageSource

#: Decoded bytes of an image that are in memory at once; a larger image is read by bands of rows.
BAND_BYTES: Final = 128_000_000


def resized(source: ImageSource, pixels: int, channels: Sequence[int]) -> NDArray[Any]:
    """Return the image as ``[C, pixels, pixels]`` in its own dtype, rounded to its integers.

    Bilinear as ``torch.nn.functional.interpolate(mode="bilinear", align_corners=False)``: each
    pixel is made of its four neighbours in the image, and no others are read.
    """
    rows, top, bottom, down = _neighbours(source.height, pixels)
    columns, left, right, along = _neighbours(source.width, pixels)
    found = source.read(channels, rows, columns)
    values = np.ascontiguousarray(found, np.float32)
    across = values[:, :, left] * (1 - along) + values[:, :, right] * along
    down = down[:, None]
    made = across[:, top] * (1 - down) + across[:, bottom] * down
    if source.dtype.kind == "f":
        # Rounding moves values by a bit, and a constant channel must stay constant.
        low, high = (end(values, axis=(1, 2), keepdims=True) for end in (np.min, np.max))
        return np.clip(made, low, high)
    whole: NDArray[Any] = np.rint(made).astype(source.dtype)
    return whole


def tile_places(height: int, width: int, pixels: int, stride: int) -> list[tuple[int, int]]:
    """Return (y, x) of the first pixel of each tile, row after row.

    The last row and column are moved inwards, so that tiles cover every pixel. The image must not
    be smaller than a tile.
    """
    rows, columns = (_starts(size, pixels, stride) for size in (height, width))
    return [(y, x) for y in rows for x in columns]


def tile_bands(
    source: ImageSource, pixels: int, stride: int, band_bytes: int = BAND_BYTES
) -> list[tuple[int, int]]:
    """Return runs ``[first, last)`` of rows of tiles that are read at once: one for an image that
    cannot be read by parts, else as many as ``band_bytes`` allow, at least one row of tiles.
    """
    starts = _starts(source.height, pixels, stride)
    if source.size_bytes <= band_bytes or not source.windowed:
        return [(0, len(starts))]
    most_rows = band_bytes * source.height // source.size_bytes
    bands, first = [], 0
    for last in range(1, len(starts) + 1):
        if last == len(starts) or starts[last] + pixels - starts[first] > most_rows:
            bands.append((first, last))
            first = last
    return bands


def band_rows(source: ImageSource, pixels: int, stride: int, band: tuple[int, int]) -> range:
    """Return the rows of pixels of a run of rows of tiles."""
    starts = _starts(source.height, pixels, stride)[band[0] : band[1]]
    return range(starts[0], starts[-1] + pixels)


def band_tiles(
    rows: NDArray[Any], source: ImageSource, pixels: int, stride: int, band: tuple[int, int]
) -> Iterator[tuple[int, int, int, NDArray[Any]]]:
    """Yield number, y, x and view ``[C, pixels, pixels]`` of the tiles of a run of rows of tiles,
    whose pixels are ``rows`` ``[C, h, W]``.
    """
    starts = _starts(source.height, pixels, stride)[band[0] : band[1]]
    lefts = _starts(source.width, pixels, stride)
    for number, y in enumerate(starts, band[0]):
        strip = rows[:, y - starts[0] : y - starts[0] + pixels]
        for place, x in enumerate(lefts):
            yield number * len(lefts) + place, y, x, strip[:, :, x : x + pixels]


def channel_ranges(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return the smallest and largest value ``[C, 2]`` of each channel of ``[C, h, w]``."""
    if len(pixels) > 1 and pixels.strides[0] < pixels.strides[2]:
        # Interleaved channels: row against row is fast, one element of three is not.
        rows = np.moveaxis(pixels, 0, -1).reshape(pixels.shape[1], -1)
        ends = [end(rows, axis=0).reshape(-1, len(pixels)) for end in (np.min, np.max)]
        return np.stack([ends[0].min(axis=0), ends[1].max(axis=0)], axis=1)
    return np.stack([pixels.min(axis=(1, 2)), pixels.max(axis=(1, 2))], axis=1)


def joined_ranges(ranges: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the ranges ``[C, 2]`` of an image, from those of its parts."""
    parts = np.stack(ranges)
    return np.stack([parts[..., 0].min(axis=0), parts[..., 1].max(axis=0)], axis=1)


def _starts(size: int, pixels: int, stride: int) -> list[int]:
    starts = list(range(0, size - pixels + 1, stride))
    return starts if starts[-1] + pixels == size else [*starts, size - pixels]


@functools.lru_cache(64)
def _neighbours(
    size: int, pixels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows (or columns) that are needed, the places among them of the two neighbours of
    each new row, and the weight of the second; in float32, as torch computes them.
    """
    scale = np.float32(size) / np.float32(pixels)
    places = np.maximum(
        (np.arange(pixels, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5), 0
    )
    first = np.minimum(places.astype(np.int64), size - 1)
    second = np.minimum(first + 1, size - 1)
    needed = np.unique(np.concatenate([first, second]))
    weight = (places - first.astype(np.float32)).astype(np.float32)
    return needed, np.searchsorted(needed, first), np.searchsorted(needed, second), weight
