"""TIFF files through tifffile: strips or tiles, planes, or one page per channel.

A segment (a strip or a tile) is decoded if it holds a requested pixel, and only one is in memory
beside the result. Uncompressed rows that lie one after the other are read without tifffile.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tifffile import COMPRESSION, PHOTOMETRIC, TiffFile, TiffPage
from tifffile import logger as tifffile_logger

from wdsbench.errors import ImageError, first_line
from wdsbench.images.geo import GEO_TAGS
from wdsbench.images.source import ImageSource, Places, cut, inside

#: Pages that are taken for channels; more are taken for a mistake of the writer's axes.
MAX_PAGES: Final = 64

#: Uncompressed rows of which pixels are taken are read in blocks of this size.
_BLOCK_BYTES: Final = 8_000_000

_NO_OUTPUT: Final = logging.NullHandler()

# TIFF 6.0: NewSubfileType bit 0 is a reduced image, bit 2 a mask; ExtraSamples 1 and 2 are alpha.
_NOT_AN_IMAGE: Final = 0b101
_ALPHA: Final = (1, 2)


class TiffImage(ImageSource):
    """An open TIFF file."""

    def __init__(self, path: Path) -> None:
        """Open a file; ImageError if it is damaged, or is of a kind that cannot be packed."""
        super().__init__(path)
        self._file: TiffFile | None = None
        # What tifffile logs of damaged files would be printed beside the error.
        tifffile_logger().addHandler(_NO_OUTPUT)
        try:
            self._file = TiffFile(path)
            self._pages = self._image_pages(self._file)
            self._check_pages()
        except ImageError:
            self.close()
            raise
        except Exception as error:  # a broken file raises anything
            self.close()
            raise self._damaged("it", error) from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _image_pages(self, file: TiffFile) -> list[TiffPage]:
        """Return the only page, or one page per channel, without overviews and masks."""
        count = len(file.pages)
        pages = [page for page in file.pages[: MAX_PAGES + 1] if isinstance(page, TiffPage)]
        pages = [page for page in pages if not page.subfiletype & _NOT_AN_IMAGE]
        if not pages:
            raise self.error("holds no image; write it again")
        kinds = {(page.shape, str(page.dtype), page.samplesperpixel) for page in pages}
        if len(pages) > 1 and (count > MAX_PAGES or len(kinds) > 1 or pages[0].samplesperpixel > 1):
            raise self.error(
                f"has {count} pages, expected one, or one page per channel (up to {MAX_PAGES});"
                " write each image to its own file, with shape (height, width, channels)"
            )
        return pages

    def _check_pages(self) -> None:
        page = self._pages[0]
        if page.photometric == PHOTOMETRIC.PALETTE:
            raise self.error("has a palette; convert it to RGB or grey values")
        if page.imagedepth > 1:
            raise self.error(f"is a volume of {page.imagedepth} slices; write each as an image")
        self.height, self.width = page.imagelength, page.imagewidth
        self.channels = page.samplesperpixel if len(self._pages) == 1 else len(self._pages)
        if len(self._pages) == 1:
            extra = tuple(page.extrasamples)
            for place, kind in enumerate(extra, page.samplesperpixel - len(extra)):
                self.alpha = place if int(kind) in _ALPHA else self.alpha
        largest = max(each.tilelength * each.tilewidth for each in self._pages)  # 0: strips
        self._check(str(page.dtype), largest)
        end = self.path.stat().st_size
        for each in self._pages:
            self._check_places(each, end)
        segment = each.rowsperstrip if not each.is_tiled else each.tilelength
        raw = page.is_final and not page.is_tiled
        self.windowed = (
            raw or segment < self.height or (each.is_tiled and each.tilewidth < self.width)
        )
        self.geo = {
            str(code): _json_value(page.tags[code].value) for code in GEO_TAGS if code in page.tags
        }

    def _check_places(self, page: TiffPage, end: int) -> None:
        """Raise ImageError if a segment is missing or ends behind the file."""
        offsets, sizes = page.dataoffsets, page.databytecounts
        rows, columns = self._grid(page)
        planes = page.samplesperpixel if page.planarconfig == 2 else 1
        expected = len(rows) * len(columns) * planes
        if len(offsets) < expected or len(sizes) < expected:
            raise self.error(
                f"lists {len(offsets)} of {expected} strips or tiles; copy or write it again"
            )
        last = max(offset + size for offset, size in zip(offsets, sizes, strict=False))
        if last > end or (page.is_final and not page.is_tiled and sum(sizes) < page.nbytes):
            missing = max(last - end, page.nbytes - sum(sizes))
            raise self.error(f"is truncated: {missing} bytes are missing; copy or write it again")

    def _grid(self, page: TiffPage) -> tuple[range, range]:
        """Return the first rows and the first columns of a page's segments."""
        if page.is_tiled:
            return (
                range(0, self.height, page.tilelength),
                range(0, self.width, page.tilewidth),
            )
        return range(0, self.height, page.rowsperstrip), range(0, self.width, self.width)

    def _read(self, channels: Sequence[int], rows: Places, columns: Places) -> NDArray[Any]:
        try:
            return self._pixels(channels, rows, columns)
        except (ArithmeticError, IndexError, OSError, TypeError, ValueError) as error:
            raise self._damaged("it", error) from error  # tags of a wrong type

    def _pixels(self, channels: Sequence[int], rows: Places, columns: Places) -> NDArray[Any]:
        page = self._pages[0]
        shape = (len(rows), len(columns))
        if len(self._pages) == 1 and page.planarconfig != 2:
            every = tuple(channels) == tuple(range(self.channels))
            out = np.empty((*shape, len(channels)), self.dtype)
            self._read_plane(page, 0, rows, columns, out, None if every else list(channels))
            return np.moveaxis(out, -1, 0)
        planes = np.empty((len(channels), *shape, 1), self.dtype)
        for channel, plane in zip(channels, planes, strict=True):
            if len(self._pages) == 1:
                self._read_plane(page, channel, rows, columns, plane, None)
            else:
                self._read_plane(self._pages[channel], 0, rows, columns, plane, None)
        return planes[..., 0]

    def _read_plane(
        self,
        page: TiffPage,
        plane: int,
        rows: Places,
        columns: Places,
        out: NDArray[Any],
        samples: list[int] | None,
    ) -> None:
        """Write ``out[rows, columns, samples]`` of one plane of a page."""
        if page.is_final and not page.is_tiled:
            self._read_rows(page, plane, rows, columns, out, samples)
            return
        firsts, lefts = self._grid(page)
        for row, first in enumerate(firsts):
            there, of_rows = inside(rows, first, min(first + firsts.step, self.height))
            if there.start == there.stop:
                continue
            for column, left in enumerate(lefts):
                here, of_columns = inside(columns, left, min(left + lefts.step, self.width))
                if here.start == here.stop:
                    continue
                number = (plane * len(firsts) + row) * len(lefts) + column
                part = cut(self._segment(page, number), of_rows, of_columns)
                out[there, here] = part if samples is None else part[..., samples]

    def _read_rows(
        self,
        page: TiffPage,
        plane: int,
        rows: Places,
        columns: Places,
        out: NDArray[Any],
        samples: list[int] | None,
    ) -> None:
        """Do the same for uncompressed rows that lie one after the other."""
        depth = 1 if page.planarconfig == 2 else page.samplesperpixel
        assert self._file is not None
        stored = self.dtype.newbyteorder(self._file.byteorder)
        row_bytes = self.width * depth * stored.itemsize
        start = page.dataoffsets[0] + plane * self.height * row_bytes
        if isinstance(rows, range):
            if len(columns) == self.width and samples is None and stored.isnative:
                self._read_bytes(out, start + rows.start * row_bytes)
                return
            rows = np.arange(rows.start, rows.stop)
        step = max(1, _BLOCK_BYTES // row_bytes)
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            needed, places = np.unique(part, return_inverse=True)
            block = np.empty((len(needed), self.width, depth), stored)
            view, descriptor = block.reshape(-1).view(np.uint8).data, self._file.filehandle.fileno()
            breaks = (np.flatnonzero(np.diff(needed) > 1) + 1) * row_bytes
            offsets = start + needed * row_bytes
            for low, high in pairwise([0, *breaks.tolist(), len(view)]):
                size = os.preadv(descriptor, [view[low:high]], int(offsets[low // row_bytes]))
                if size < high - low:
                    raise self._cut()
            found = cut(block, places, columns)
            out[first : first + step] = found if samples is None else found[..., samples]

    def _read_bytes(self, out: NDArray[Any], offset: int) -> None:
        """Fill a contiguous array with the bytes at ``offset``."""
        assert self._file is not None
        view = out.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):  # one call reads less than 2 GB
            count = os.preadv(self._file.filehandle.fileno(), [view[done:]], offset + done)
            if count == 0:
                raise self._cut()
            done += count

    def _cut(self) -> ImageError:
        return self.error("was cut while it was read; pack it again when it is whole")

    def _segment(self, page: TiffPage, number: int) -> NDArray[Any]:
        """Return a decoded segment ``[rows, columns, samples]``; it may be larger than its part."""
        assert self._file is not None
        offset, size = page.dataoffsets[number], page.databytecounts[number]
        data = None
        if size and offset:  # GDAL leaves out segments without data
            data = os.pread(self._file.filehandle.fileno(), size, offset)
        tables = {"jpegtables": page.jpegtables} if page.compression == COMPRESSION.JPEG else {}
        try:
            pixels, _, shape = page.decode(data, number, **tables)
        except Exception as error:  # codecs raise anything
            raise self._damaged(f"strip or tile {number}", error) from error
        if pixels is None:
            return np.full(shape[1:], page.nodata, self.dtype)
        found: NDArray[Any] = pixels[0]
        return found

    def _damaged(self, what: str, error: Exception) -> ImageError:
        return self.error(f"{what} cannot be decoded ({first_line(error)}); copy or write it again")


def _json_value(value: Any) -> Any:
    """Return a tag's value as JSON."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, tuple | list | np.ndarray):
        return [_json_value(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value
