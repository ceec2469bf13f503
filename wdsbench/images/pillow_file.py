"""PNG and JPEG files through Pillow, decoded whole."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wdsbench.errors import ImageError, first_line
from wdsbench.images.source import ImageSource, Places, cut

#: Pillow's mode -> channels, dtype, channel of alpha.
_MODES: Final[dict[str, tuple[int, str, int | None]]] = {
    "L": (1, "uint8", None),
    "LA": (2, "uint8", 1),
    "RGB": (3, "uint8", None),
    "RGBA": (4, "uint8", 3),
    "CMYK": (4, "uint8", None),
    "I;16": (1, "uint16", None),
    "I;16B": (1, "uint16", None),
}
#: Of IHDR in a PNG file: bits per sample and the type of colours (PNG specification, 11.2.2).
_PNG_DEPTH: Final = 24
_PNG_GREY: Final = 0


class PillowFile(ImageSource):
    """An open PNG or JPEG file."""

    windowed = False

    def __init__(self, path: Path) -> None:
        """Open a file; ImageError if it is damaged, or is of a mode that cannot be packed."""
        super().__init__(path)
        self._pixels: NDArray[Any] | None = None
        try:
            with warnings.catch_warnings():
                # Pillow warns of large images, and refuses twice as large ones.
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                self._image = Image.open(path, formats=("PNG", "JPEG"))
        except Image.DecompressionBombError as error:
            raise self.error(
                f"{first_line(error)}; convert it to a tiled TIFF file, which is read by parts"
            ) from error
        except OSError as error:
            raise self._damaged(error) from error
        try:
            self._check_mode()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._pixels = None
        self._image.close()

    def _check_mode(self) -> None:
        mode = self._image.mode
        self.width, self.height = self._image.size
        if mode in ("P", "PA"):
            raise self.error("has a palette; convert it to RGB or grey values")
        if mode not in _MODES:
            raise self.error(f"has Pillow's mode {mode}; convert it to RGB or grey values")
        self.channels, dtype, self.alpha = _MODES[mode]
        if self._image.format == "PNG":
            with self.path.open("rb") as file:
                file.seek(_PNG_DEPTH)
                depth, colour = file.read(2)
            if depth == 16 and colour != _PNG_GREY:
                raise self.error(
                    "has 16 bits per channel and several channels, of which Pillow keeps 8; convert"
                    " it to TIFF"
                )
        self._check(dtype)

    def _read(self, channels: Sequence[int], rows: Places, columns: Places) -> NDArray[Any]:
        if self._pixels is None:
            try:
                pixels = np.asarray(self._image)
            except (OSError, ValueError, SyntaxError) as error:
                raise self._damaged(error) from error
            pixels = pixels.reshape(self.height, self.width, self.channels)
            self._pixels = pixels.astype(self.dtype, copy=False)
        found = cut(self._pixels, rows, columns)
        if len(channels) < self.channels or tuple(channels) != tuple(range(self.channels)):
            found = found[..., list(channels)]
        return np.moveaxis(found, -1, 0)

    def _damaged(self, error: Exception) -> ImageError:
        return self.error(f"cannot be read ({first_line(error)}); copy or write it again")
