"""Files that cannot be used: one line that names the file and the remedy."""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from image_files import random_pixels, write_tiff
from PIL import Image

from wdsbench.errors import ImageError
from wdsbench.images.files import find_images, open_image


def tiff(path: Path, **options: object) -> Path:
    return write_tiff(path / "bad.tif", random_pixels(), **options)


def cut(path: Path, keep: float = 0.5) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


def garbled(path: Path) -> Path:
    with tifffile.TiffFile(path) as file:
        offset, size = file.pages[0].dataoffsets[1], file.pages[0].databytecounts[1]
    data = bytearray(path.read_bytes())
    data[offset : offset + size] = bytes(range(256)) * (size // 256) + bytes(size % 256)
    path.write_bytes(data)
    return path


def without_offsets(path: Path) -> Path:
    """Rename the tag StripOffsets, of which tifffile logs that it is missing."""
    with tifffile.TiffFile(path) as file:
        offset = file.pages[0].tags[273].offset
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack("<H", 65_000))
    return path


def float_offset(path: Path) -> Path:
    """Give the tag StripOffsets the type float."""
    with tifffile.TiffFile(path) as file:
        offset = file.pages[0].tags[273].offset
    with path.open("r+b") as file:
        file.seek(offset + 2)
        file.write(struct.pack("<HIf", 11, 1, 256.0))
    return path


def palette_tiff(folder: Path) -> Path:
    colours = np.zeros((3, 256), np.uint16)
    path = folder / "bad.tif"
    tifffile.imwrite(path, random_pixels()[..., 0], photometric="palette", colormap=colours)
    return path


def saved(folder: Path, name: str, mode: str) -> Path:
    Image.fromarray(random_pixels()).convert(mode).save(folder / name)
    return folder / name


def empty(folder: Path, name: str) -> Path:
    (folder / name).touch()
    return folder / name


def png(path: Path, header: tuple[int, ...], rows: bytes = b"") -> Path:
    """Write a PNG file of any header: width, height, bits, type of colours and three zeros."""
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", *header)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return path


def deep_png(folder: Path) -> Path:
    """Write an RGB file of 16 bits, which Pillow cannot."""
    return png(folder / "bad.png", (4, 4, 16, 2, 0, 0, 0), bytes(4 * (1 + 6 * 4)))


def bomb(folder: Path) -> Path:
    """Write 30,000 x 30,000 pixels of which every tile is the same 70 bytes."""
    path = folder / "bad.tif"
    block = np.zeros((3008, 3008), np.uint8)
    tifffile.imwrite(path, block, compression="zstd", tile=(3008, 3008))
    with tifffile.TiffFile(path, mode="r+b") as file:
        for code in (256, 257):
            file.pages[0].tags[code].overwrite(30_000)
        count = 100
        for code in (324, 325):
            file.pages[0].tags[code].overwrite([file.pages[0].tags[code].value[0]] * count)
    return path


def large_tile(path: Path) -> Path:
    """Say that a tile has 60,000 x 60,000 pixels, most of them outside the image."""
    with tifffile.TiffFile(path, mode="r+b") as file:
        for code in (322, 323):
            file.pages[0].tags[code].overwrite(60_000)
    return path


def without_rows(path: Path) -> Path:
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags[257].overwrite(0)
    return path


def nan(folder: Path) -> Path:
    pixels = random_pixels(dtype="float32")
    pixels[4, 5, 2] = np.nan
    return write_tiff(folder / "bad.tif", pixels)


def infinite(folder: Path) -> Path:
    pixels = random_pixels(dtype="float32")
    pixels[0, 0, 1] = -np.inf
    return write_tiff(folder / "bad.tif", pixels, compression="deflate")


def stack(folder: Path) -> Path:
    tifffile.imwrite(folder / "bad.tif", random_pixels(90, 20), photometric="minisblack")
    return folder / "bad.tif"


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (lambda folder: empty(folder, "bad.tif"), "copy or write it again"),
    "text": (
        lambda folder: (folder / "bad.tif").write_text("hello") and folder / "bad.tif",
        "copy",
    ),
    "cut": (lambda folder: cut(tiff(folder)), "is truncated: 5394 bytes are missing; copy"),
    "cut strips": (
        lambda folder: cut(tiff(folder, compression="deflate", rowsperstrip=5)),
        "truncated",
    ),
    "no offsets": (lambda folder: without_offsets(tiff(folder)), "lists 0 of 1 strips or tiles"),
    "float offset": (lambda folder: float_offset(tiff(folder)), "it cannot be decoded .*float"),
    "cut header": (lambda folder: cut(tiff(folder), 0.005), "copy or write it again"),
    "garbled": (
        lambda folder: garbled(tiff(folder, compression="deflate", rowsperstrip=5)),
        "strip or tile 1 cannot",
    ),
    "garbled lzw": (
        lambda folder: garbled(tiff(folder, compression="zstd", tile=(16, 16))),
        "strip or tile 1 cannot",
    ),
    "empty png": (lambda folder: empty(folder, "bad.png"), "copy or write it again"),
    "cut png": (lambda folder: cut(saved(folder, "bad.png", "RGB")), "cannot be read .*truncated"),
    "cut jpeg": (lambda folder: cut(saved(folder, "bad.jpg", "RGB")), "cannot be read .*truncated"),
    "deep png": (deep_png, "16 bits per channel.*convert it to TIFF"),
    "large tile": (
        lambda folder: large_tile(tiff(folder, compression="deflate", tile=(16, 16))),
        "declares 10800 MB of pixels",
    ),
    "no rows": (lambda folder: without_rows(tiff(folder)), "has 0 x 70 pixels"),
    "bomb png": (
        lambda folder: png(folder / "bad.png", (10_000, 10_000, 8, 2, 0, 0, 0)),
        "declares 300 MB of pixels in .. bytes",
    ),
    "huge png": (
        lambda folder: png(folder / "bad.png", (20_000, 20_000, 8, 2, 0, 0, 0)),
        "exceeds limit .* tiled TIFF",
    ),
    "palette": (palette_tiff, "palette; convert it"),
    "palette png": (lambda folder: saved(folder, "bad.png", "P"), "palette; convert it"),
    "bilevel png": (lambda folder: saved(folder, "bad.png", "1"), "mode 1; convert it"),
    "alpha png": (lambda folder: saved(folder, "bad.png", "RGBA"), "alpha .*--channels 0,1,2, or"),
    "alpha grey": (lambda folder: saved(folder, "bad.png", "LA"), "alpha .*--channels 0, or"),
    "alpha": (
        lambda folder: write_tiff(
            folder / "bad.tif",
            random_pixels(channels=4),
            photometric="rgb",
            extrasamples=["unassalpha"],
        ),
        "channel 3 is alpha",
    ),
    "double": (
        lambda folder: write_tiff(folder / "bad.tif", random_pixels(dtype="float64")),
        "float64, expected",
    ),
    "bits": (
        lambda folder: write_tiff(folder / "bad.tif", random_pixels(channels=1) > 9),
        "bool, expected",
    ),
    "pages": (stack, "has 90 pages"),
    "NaN": (nan, "channel 2 of pixel y 4, x 5 is nan"),
    "infinity": (infinite, "channel 1 of pixel y 0, x 0 is -inf"),
    "bomb": (bomb, "900 MB of pixels in .* bomb"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as outside pytest
    make, message = BAD[name]
    path = make(tmp_path)
    with pytest.raises(ImageError, match=message) as caught, open_image(path) as source:
        source.read(source.chosen(None))
    assert caught.value.file == str(path)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("channels", [(0, 2), (0, 1, 2, 3)])
def test_alpha_can_be_left_out_or_chosen(channels: tuple[int, ...], tmp_path: Path) -> None:
    """tifffile says alpha of the fourth channel unless its caller says otherwise."""
    pixels = random_pixels(channels=4)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb")
    with open_image(tmp_path / "a.tif") as source:
        assert source.alpha == 3
        found = source.read(source.chosen(channels))
    np.testing.assert_array_equal(found, np.moveaxis(pixels[..., list(channels)], -1, 0))


def test_a_channel_that_does_not_exist(tmp_path: Path) -> None:
    with (
        open_image(tiff(tmp_path)) as source,
        pytest.raises(ImageError, match="no channel 3; choose from 0 to 2"),
    ):
        source.chosen((0, 3))


def test_a_small_image_may_be_constant(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "a.tif", np.zeros((3000, 4000, 3), np.uint8), compression="zstd")
    assert path.stat().st_size * 1_100 < 36e6
    with open_image(path) as source:
        assert not source.read((1,), range(2), range(2)).any()


def test_no_image(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no image in"):
        find_images(str(tmp_path))
    with pytest.raises(ImageError, match="no image in"):
        find_images(str(tmp_path / "*.tif"))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ImageError, match=r"notes.txt: the name ends in none"):
        find_images(str(tmp_path / "*"))
