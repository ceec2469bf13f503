"""Prepares the patches of images, each image on its own; worker processes run this."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.images.files import open_image
from wdsbench.images.patches import band_rows, band_tiles, channel_ranges, resized, tile_bands
from wdsbench.images.source import ImageSource
from wdsbench.options import option
from wdsbench.shards.format.kinds import IMAGE, IMAGE_RANGE, META
from wdsbench.shards.format.members import npy_pieces
from wdsbench.shards.format.tar import Pieces

#: Dtype of an image -> stored dtype. int16 is stored with 32,768 added.
STORED: Final = {"uint8": "|u1", "uint16": "<u2", "int16": "<u2", "float32": "<f2"}
INT16_OFFSET: Final = 32_768


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images are packed; the fields' help texts say what they mean."""

    patch_size: int | None = option(None, "Pixels of a side of the square patches.")
    resize: bool = option(False, "Store each image as one patch, resized bilinearly [default].")
    tile: bool = option(False, "Store each image as tiles, which cover every pixel.")
    stride: int | None = option(None, "For --tile: pixels from tile to tile [the patch size].")
    channels: tuple[int, ...] | None = option(None, "Channels to store, as 0,2 [all].")
    value_range: str = option(
        "image",
        "Range of values that becomes 0 to 1: of the image, or of each channel; with --resize of"
        " the resized image.",
        flag="--range",
    )
    labels: Path | None = option(
        None,
        "CSV with image, label (1 anomalous, 0 normal, empty unknown) and optionally tile; without"
        " it folders named normal, good, ok or 0 hold normal images, and those beside them"
        " anomalous ones.",
    )
    on_error: str = option(
        "fail", "Image that cannot be used: fail, or record it in failures.jsonl and continue."
    )

    def check(self) -> None:
        """Raise ValueError for a value that is not one of those expected."""
        for flag, value, expected in (
            ("--range", self.value_range, ("image", "channel")),
            ("--on-error", self.on_error, ("fail", "record")),
        ):
            if value not in expected:
                raise ValueError(f"{flag} {value!r} is not one of {', '.join(expected)}.")
        if self.patch_size is None or self.patch_size < 1:
            raise ValueError(f"--patch-size is {self.patch_size}; must be at least 1.")
        if self.tile and self.resize:
            raise ValueError("--tile and --resize: choose one.")
        if self.stride is not None and not self.tile:
            raise ValueError("--stride needs --tile.")
        if not 1 <= self.step <= self.patch_size:
            raise ValueError(
                f"--stride is {self.stride}; must be from 1 to the patch size {self.patch_size}, so"
                " that tiles cover every pixel."
            )
        if self.channels is not None and (
            not self.channels
            or min(self.channels) < 0
            or len(set(self.channels)) < len(self.channels)
        ):
            raise ValueError(f"--channels is {self.channels}; expected different numbers from 0.")

    @property
    def pixels(self) -> int:
        """P: pixels of a side of a patch."""
        return self.patch_size or 0

    @property
    def step(self) -> int:
        """Pixels from tile to tile."""
        return self.pixels if self.stride is None else self.stride


@dataclass(frozen=True)
class ImagePart:
    """An image, or a part of a large one: what a worker prepares at a time.

    Attributes:
        name: The image's name, which is its question id.
        band: With ``--tile`` the run ``[first, last)`` of rows of tiles; None: all.
        ranges: Range of every channel ``[C, 2]`` if it is already known.
    """

    name: str
    path: Path
    band: tuple[int, int] | None = None
    ranges: NDArray[Any] | None = None

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class PreparedPatch:
    """One patch, ready to be written; or, if only measured, the ranges of a part of an image.

    Attributes:
        trace: Number of the tile.
        dtype: Dtype of the image.
        channels: C.
        members: Content by member name.
        ranges: Range of every channel ``[C, 2]`` in the image's own values.
    """

    trace: int
    dtype: str
    channels: int
    ranges: NDArray[Any]
    members: dict[str, Pieces] = field(default_factory=dict)


@dataclass(frozen=True)
class ImagePreparer:
    """Prepares patches; is sent to worker processes. ``measure`` reads the ranges only."""

    options: ImageOptions
    measure: bool = False

    def for_workers(self, _workers: int) -> ImagePreparer:
        """Return itself: it has no threads."""
        return self

    def file(self, path: ImagePart) -> Iterator[PreparedPatch]:
        """Yield the patches of an image or of a part of it, in order; ImageError if it is bad.

        No patch is yielded before the whole part was read.
        """
        with open_image(path.path) as source:
            channels = source.chosen(self.options.channels)
            if self.options.tile:
                yield from self._tiles(path, source, channels)
            else:
                patch = resized(source, self.options.pixels, channels)
                ranges = self._ranges(patch)
                window = (0, 0, source.height, source.width)
                yield self._prepared(path, source, channels, patch, ranges, 0, window)

    def _tiles(
        self, part: ImagePart, source: ImageSource, channels: Sequence[int]
    ) -> Iterator[PreparedPatch]:
        pixels, stride = self.options.pixels, self.options.step
        check_size(source, pixels)
        (band,) = [part.band] if part.band else tile_bands(source, pixels, stride)
        rows = source.read(channels, band_rows(source, pixels, stride, band))
        ranges = self._ranges(rows) if part.ranges is None else part.ranges
        if self.measure:
            yield PreparedPatch(0, source.dtype.name, len(channels), ranges)
            return
        for number, y, x, tile in band_tiles(rows, source, pixels, stride, band):
            window = (y, x, pixels, pixels)
            yield self._prepared(part, source, channels, tile, ranges, number, window)

    def _ranges(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return the ranges ``[C, 2]``, those of all channels together if they share one."""
        ranges = channel_ranges(pixels)
        if self.options.value_range == "image":
            ranges[:] = ranges[:, 0].min(), ranges[:, 1].max()
        return ranges

    def _prepared(
        self,
        part: ImagePart,
        source: ImageSource,
        channels: Sequence[int],
        pixels: NDArray[Any],
        ranges: NDArray[Any],
        number: int,
        window: tuple[int, int, int, int],
    ) -> PreparedPatch:
        stored, stored_range = stored_values(pixels, ranges)
        image: dict[str, Any] = {
            "dtype": source.dtype.name,
            "height": source.height,
            "width": source.width,
            "window": list(window),
            "channels": list(channels),
            "range": ranges.tolist(),
        }
        if source.geo:
            image["geo"] = source.geo
        meta = {
            "question_id": part.name,
            "trace": number,
            "image": image,
            "provenance": {"file": part.path.name, "position": 0, "remarks": []},
        }
        text = json.dumps(meta, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return PreparedPatch(
            trace=number,
            dtype=source.dtype.name,
            channels=len(channels),
            ranges=ranges,
            members={
                IMAGE: npy_pieces(stored),
                IMAGE_RANGE: npy_pieces(stored_range),
                META: [text.encode("ascii")],
            },
        )


def check_size(source: ImageSource, pixels: int) -> None:
    """Raise ImageError if the image is smaller than a tile."""
    if min(source.height, source.width) < pixels:
        raise source.error(
            f"has {source.height} x {source.width} pixels, fewer than a tile of {pixels} x"
            f" {pixels}; choose a smaller --patch-size, or --resize"
        )


def stored_values(
    pixels: NDArray[Any], ranges: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return the stored values of a patch ``[C, P, P]`` and their ranges ``[C, 2]``.

    ``ranges`` are in the image's own values. Integers are kept, int16 with 32,768 added; floats are
    normalised, because float16 has 11 bits wherever the values lie.
    """
    if pixels.dtype == np.float32:
        low, high = (ranges[:, end, None, None].astype(np.float64) for end in (0, 1))
        usable = high > low
        values = (pixels - low) / np.where(usable, high - low, 1.0)
        stored_range = np.zeros((len(pixels), 2), np.float32)
        stored_range[:, 1] = usable[:, 0, 0]
        return np.where(usable, values, 0.0).astype(np.float16, order="C"), stored_range
    stored = np.ascontiguousarray(pixels)
    if pixels.dtype == np.int16:
        # Adding 32,768 flips the sign's bit.
        stored = stored.view(np.uint16) ^ np.uint16(INT16_OFFSET)
        return stored, (ranges.astype(np.float32) + np.float32(INT16_OFFSET))
    return stored, ranges.astype(np.float32)
