"""Error maps of whole images: a detector's errors of overlapping tiles, joined row by row.

In memory are a band of the image's rows (16 MB; the whole image if it cannot be read by parts), a
batch of tiles and P rows of the map, so the height of an image costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.errors import DetectorError
from wdsbench.images.patches import (
    band_rows,
    channel_ranges,
    joined_ranges,
    tile_bands,
    tile_places,
)
from wdsbench.images.source import ImageSource
from wdsbench.train.fitted import FittedDetector, StoredImages

#: Decoded bytes of an image that are in memory at once, if it can be read by parts.
READ_BYTES: Final = 16_000_000


@dataclass(frozen=True)
class Strip:
    """Finished rows of a map, from row ``top``.

    Attributes:
        pixels: The channels that the detector reads, ``[C, h, W]`` in the image's dtype.
        ranges: Their values that become 0 and 1, ``[C, 2]``.
        errors: float32 ``[h, W]``.
    """

    top: int
    pixels: NDArray[Any]
    ranges: NDArray[Any]
    errors: NDArray[np.float32]


@dataclass(frozen=True)
class MapMaker:
    """Makes maps with a fitted detector of images.

    Attributes:
        stride: Pixels from tile to tile, from 1 to the patch size.
        join: ``mean`` or ``max`` of the errors where tiles overlap.
        ask: Called before every batch and every read; what it raises ends the map.
    """

    fitted: FittedDetector
    stride: int
    join: str
    batch_size: int
    device: str
    ask: Callable[[], None]

    @property
    def side(self) -> int:
        """P: pixels of a side of a tile."""
        assert self.fitted.shape is not None
        return self.fitted.shape.num_features

    @property
    def _packed(self) -> StoredImages:
        assert self.fitted.traces is not None
        assert self.fitted.traces.images is not None
        return self.fitted.traces.images

    def channels(self, source: ImageSource) -> tuple[int, ...]:
        """Return the channels that pack would store; ImageError if the image does not fit."""
        packed, side, traces = self._packed, self.side, self.fitted.traces
        assert traces is not None
        if source.dtype.name != packed.dtype:
            raise source.error(
                f"its pixels are {source.dtype.name}, the detector was trained on {packed.dtype};"
                " convert it, or train a detector on such images"
            )
        if packed.channels is None and source.channels != traces.num_layers:
            raise source.error(
                f"has {source.channels} channels, the detector was trained on {traces.num_layers};"
                " convert it, or train a detector on such images"
            )
        channels = tuple(range(source.channels)) if packed.channels is None else packed.channels
        for channel in channels:
            alpha = packed.channels is None and channel == source.alpha
            if alpha or channel >= source.channels:
                found = "is transparency" if alpha else "is missing"
                raise source.error(
                    f"channel {channel}, which the detector reads, {found}; convert it, or train a"
                    " detector on such images"
                )
        if min(source.height, source.width) < side:
            raise source.error(
                f"has {source.height} x {source.width} pixels, fewer than a patch of {side} x"
                f" {side}; pad it, or train a detector on data packed with a smaller --patch-size"
            )
        return channels

    def tile_rows(self, source: ImageSource) -> int:
        """Return the number of strips of an image."""
        return len(self._tops(source)[0])

    def strips(self, source: ImageSource) -> Iterator[Strip]:
        """Yield the rows of the map from top to bottom.

        Raises:
            ImageError: The image does not fit the detector, or a part of it cannot be decoded.
            DetectorError: An error is not finite.
        """
        channels, side = self.channels(source), self.side
        tops, lefts = self._tops(source)
        ends = [*tops[1:], source.height]
        counts = [_coverage(*each, side) for each in ((source.height, tops), (source.width, lefts))]
        bands = tile_bands(source, side, self.stride, READ_BYTES)
        parts = []
        for band in bands:
            rows = self._rows(source, channels, band)
            parts.append(channel_ranges(rows))
        ranges = joined_ranges(parts)
        if self._packed.range == "image":
            ranges[:] = ranges[:, 0].min(), ranges[:, 1].max()
        read = slice(None) if self.fitted.layers is None else list(self.fitted.layers)
        ranges = ranges[read]
        window = np.zeros((side, source.width), np.float32)
        for band in bands:
            if len(bands) > 1:
                del rows  # only one band is in memory
                rows = self._rows(source, channels, band)
            for top, end in zip(tops[slice(*band)], ends[slice(*band)], strict=True):
                first = top - tops[band[0]]
                strip = rows[read, first : first + side]
                self._add_tiles(window, strip, ranges, lefts)
                done = end - top
                errors = window[:done].copy()
                if self.join == "mean":
                    errors /= counts[0][top:end, None] * counts[1]
                if not np.isfinite(errors).all():
                    raise DetectorError(
                        f"{self.fitted.spec.name} gives errors that are not finite for"
                        f" {source.path}; train it again"
                    )
                yield Strip(top, strip[:, :done], ranges, errors)
                window[: side - done] = window[done:]
                window[side - done :] = 0

    def _tops(self, source: ImageSource) -> tuple[list[int], list[int]]:
        """Return the first rows and the first columns of the tiles."""
        places = tile_places(source.height, source.width, self.side, self.stride)
        rows, columns = zip(*places, strict=True)
        return list(dict.fromkeys(rows)), list(dict.fromkeys(columns))

    def _rows(
        self, source: ImageSource, channels: Sequence[int], band: tuple[int, int]
    ) -> NDArray[Any]:
        self.ask()
        return source.read(channels, band_rows(source, self.side, self.stride, band))

    def _add_tiles(
        self,
        window: NDArray[np.float32],
        strip: NDArray[Any],
        ranges: NDArray[Any],
        lefts: Sequence[int],
    ) -> None:
        """Add the errors of a row of tiles, whose pixels are ``strip`` ``[C, P, W]``."""
        join = np.add if self.join == "mean" else np.maximum
        for start in range(0, len(lefts), self.batch_size):
            self.ask()
            places = lefts[start : start + self.batch_size]
            tiles = np.stack([strip[:, :, x : x + self.side] for x in places])
            images = torch.from_numpy(normalised(tiles, ranges)).to(self.device)
            errors = self.fitted.error_map(images).float().cpu().numpy()
            for x, of_tile in zip(places, errors, strict=True):
                there = window[:, x : x + self.side]
                join(there, of_tile, out=there)


def normalised(pixels: NDArray[Any], ranges: NDArray[Any]) -> NDArray[np.float32]:
    """Return ``[..., C, h, w]`` as a loader returns them that were packed with these ranges
    ``[C, 2]``: floats are rounded to float16.
    """
    whole = pixels.dtype.kind != "f"
    low, high = (ranges[:, end, None, None].astype(np.float64) for end in (0, 1))
    usable = high > low
    # Exact: the integers have at most 16 bits.
    values = pixels.astype(np.float32) - low.astype(np.float32) if whole else pixels - low
    values /= np.where(usable, high - low, 1.0).astype(values.dtype)
    if not whole:
        values = values.astype(np.float16)
    return np.ascontiguousarray(np.where(usable, values, 0), np.float32)


def _coverage(size: int, starts: Sequence[int], side: int) -> NDArray[np.float32]:
    """Return the number of tiles over each row or column."""
    counts = np.zeros(size, np.float32)
    for start in starts:
        counts[start : start + side] += 1
    return counts
