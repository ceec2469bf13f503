"""An open image file, whatever its format: its size, channels and dtype, and any of its pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import ImageError

#: Dtypes of images that can be packed, as NumPy names them.
DTYPES: Final = ("uint8", "uint16", "int16", "float32")

#: An image is refused as a decompression bomb if both are exceeded. Deflate cannot expand more than
#: 1,032 times (zlib's documentation); smaller images cannot exhaust the memory.
BOMB_RATIO: Final = 1_100
BOMB_BYTES: Final = 256_000_000

#: Rows or columns: a range, or indices ascending from 0 (equal ones are allowed).
Places: TypeAlias = range | NDArray[np.int64]


class ImageSource(ABC):
    """An open image file; a context, which closes it.

    Attributes:
        path: The file.
        height: Pixels from top to bottom.
        width: Pixels from left to right.
        channels: Number of channels, alpha included.
        dtype: One of ``DTYPES``, native byte order.
        alpha: The channel of transparency, or None.
        windowed: False if a part cannot be read without decoding the whole image.
        geo: GeoTIFF tags by number, as JSON values; empty if there are none.
    """

    windowed = True
    alpha: int | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.height = self.width = self.channels = 0
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self.geo: dict[str, Any] = {}

    def __enter__(self) -> ImageSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def size_bytes(self) -> int:
        """Bytes of the decoded image."""
        return self.height * self.width * self.channels * self.dtype.itemsize

    def read(
        self, channels: Sequence[int], rows: Places | None = None, columns: Places | None = None
    ) -> NDArray[Any]:
        """Return pixels ``[C, rows, columns]`` of these channels in the image's dtype; all rows or
        columns for None. The array may have any strides.

        ImageError: A part cannot be decoded, or a float is NaN or infinite.
        """
        rows = range(self.height) if rows is None else rows
        columns = range(self.width) if columns is None else columns
        pixels = self._read(channels, rows, columns)
        if self.dtype.kind == "f" and pixels.size:
            lowest, highest = pixels.min(), pixels.max()  # NaN wins both
            if not (np.isfinite(lowest) and np.isfinite(highest)):
                channel, row, column = np.argwhere(~np.isfinite(pixels))[0].tolist()
                raise self.error(
                    f"channel {channels[channel]} of pixel y {rows[row]}, x {columns[column]} is"
                    f" {pixels[channel, row, column]}; write a finite number in its place"
                )
        return pixels

    def chosen(self, channels: Sequence[int] | None) -> tuple[int, ...]:
        """Return the channels to read, all for None; ImageError if one is missing, or is alpha and
        was not chosen.
        """
        found = tuple(range(self.channels)) if channels is None else tuple(channels)
        for channel in found:
            if channel >= self.channels:
                raise self.error(
                    f"has {self.channels} channels, so there is no channel {channel}; choose from 0"
                    f" to {self.channels - 1} with --channels"
                )
        if channels is None and self.alpha is not None:
            rest = ",".join(str(each) for each in found if each != self.alpha)
            raise self.error(
                f"channel {self.alpha} is alpha (transparency); leave it out with --channels"
                f" {rest}, or name it there too if it is measured"
            )
        return found

    def error(self, detail: str) -> ImageError:
        """Return an error about this file."""
        return ImageError(detail, file=str(self.path))

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    @abstractmethod
    def _read(self, channels: Sequence[int], rows: Places, columns: Places) -> NDArray[Any]:
        """Return pixels as `read` does, not checked."""

    def _check(self, dtype: str, part_pixels: int = 0) -> None:
        """Set the dtype; raise ImageError for one that cannot be packed, for an image without
        pixels, or for a bomb. ``part_pixels`` is what is decoded at once if it can be more than
        the image.
        """
        if dtype not in DTYPES:
            raise self.error(
                f"its pixels are {dtype}, expected {', '.join(DTYPES[:-1])} or {DTYPES[-1]};"
                " convert it"
            )
        self.dtype = np.dtype(dtype)
        if not self.size_bytes:
            raise self.error(f"has {self.height} x {self.width} pixels; write it again")
        stored = self.path.stat().st_size
        decoded = max(self.size_bytes, part_pixels * self.channels * self.dtype.itemsize)
        if decoded > max(BOMB_BYTES, BOMB_RATIO * stored):
            raise self.error(
                f"declares {decoded / 1e6:.0f} MB of pixels in {stored} bytes, more than"
                f" {BOMB_RATIO} times (a decompression bomb?); if it is genuine, store it without"
                " compression"
            )


def cut(pixels: NDArray[Any], rows: Places, columns: Places) -> NDArray[Any]:
    """Return ``pixels[rows][:, columns]`` of an array ``[H, W, ...]``, a view for two ranges."""
    for axis, places in enumerate((rows, columns)):
        if isinstance(places, range):
            part = slice(places.start, places.stop)
            pixels = pixels[part] if axis == 0 else pixels[:, part]
        else:
            pixels = pixels.take(places, axis=axis)
    return pixels


def inside(places: Places, first: int, last: int) -> tuple[slice, Places]:
    """Return which of the places lie in ``[first, last)``, and those, counted from ``first``."""
    if isinstance(places, range):
        start, stop = max(places.start, first), min(places.stop, last)
        stop = max(start, stop)
        part = slice(start - places.start, stop - places.start)
        return part, range(start - first, stop - first)
    start, stop = np.searchsorted(places, (first, last)).tolist()
    return slice(start, stop), places[start:stop] - first
