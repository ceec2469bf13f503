"""Pixels of image files, against the arrays that tifffile and Pillow wrote."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from image_files import random_pixels, write_tiff
from PIL import Image

from wdsbench.images.files import find_images, open_image
from wdsbench.images.geo import GEO_TAGS

DTYPES = ["uint8", "uint16", "int16", "float32"]
FORMS: dict[str, dict[str, Any]] = {
    "one strip": {},
    "strips": {"rowsperstrip": 7},
    "planar": {"planar": True, "rowsperstrip": 7},
    "tiles": {"tile": (16, 32)},
    "planar tiles": {"planar": True, "tile": (16, 16)},
    "deflate": {"compression": "deflate", "rowsperstrip": 7},
    "deflate, predictor": {"compression": "deflate", "predictor": True, "rowsperstrip": 9},
    "lzw": {"compression": "lzw", "tile": (32, 32)},
    "zstd": {"compression": "zstd", "planar": True, "rowsperstrip": 11},
    "big-endian": {"byteorder": ">", "rowsperstrip": 7},
    "big-endian lzw": {"byteorder": ">", "compression": "lzw", "predictor": True, "tile": (16, 16)},
    "BigTIFF": {"bigtiff": True},
}


def read_parts(path: Path, pixels: np.ndarray[Any, Any]) -> None:
    """Compare the whole image, a window, a gather, and chosen channels with ``pixels``."""
    with open_image(path) as source:
        height, width, channels = pixels.shape
        assert (source.height, source.width, source.channels) == pixels.shape
        assert source.dtype == pixels.dtype
        every = range(channels)
        np.testing.assert_array_equal(source.read(every), np.moveaxis(pixels, -1, 0))
        window = source.read(every, range(13, 37), range(15, 50))
        np.testing.assert_array_equal(window, np.moveaxis(pixels[13:37, 15:50], -1, 0))
        rows, columns = np.array([0, 6, 7, 8, 8, 30, height - 1]), np.array([0, 33, width - 1])
        found = source.read([channels - 1, 0], rows, columns)
        expected = pixels[rows][:, columns][..., [channels - 1, 0]]
        np.testing.assert_array_equal(found, np.moveaxis(expected, -1, 0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiff(form: str, dtype: str, tmp_path: Path) -> None:
    pixels = random_pixels(dtype=dtype)
    options = dict(FORMS[form])
    if dtype == "float32" and options.get("predictor"):
        options["predictor"] = 3
    read_parts(write_tiff(tmp_path / "a.tif", pixels, **options), pixels)


@pytest.mark.parametrize("channels", [1, 2, 7])
def test_channels(channels: int, tmp_path: Path) -> None:
    pixels = random_pixels(channels=channels)
    read_parts(write_tiff(tmp_path / "a.tif", pixels, compression="lzw"), pixels)


def test_one_page_per_channel(tmp_path: Path) -> None:
    pixels = random_pixels(channels=5, dtype="uint16")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.moveaxis(pixels, -1, 0), photometric="minisblack")
    with tifffile.TiffFile(path) as file:
        assert len(file.pages) == 5
    read_parts(path, pixels)


def test_jpeg_in_tiff(tmp_path: Path) -> None:
    pixels = np.broadcast_to(np.arange(70, dtype=np.uint8)[:, None], (50, 70, 3)).copy()
    path = write_tiff(
        tmp_path / "a.tif", pixels, photometric="rgb", compression="jpeg", tile=(16, 32)
    )
    expected = tifffile.imread(path)
    assert np.abs(expected.astype(int) - pixels).max() < 10
    read_parts(path, expected)


def test_sparse_tiles_are_filled(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "a.tif", random_pixels(), tile=(32, 32), compression="deflate")
    with tifffile.TiffFile(path, mode="r+b") as file:
        tags = file.pages[0].tags
        for code in (324, 325):
            tags[code].overwrite([0, *tags[code].value[1:]])
    with open_image(path) as source:
        found = source.read(range(3))
    assert not found[:, :32, :32].any()
    assert found[:, 32:].all(axis=0).any()


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
def test_png(mode: str, tmp_path: Path) -> None:
    pixels = random_pixels(
        channels=3 if mode == "RGB" else 1, dtype="uint16" if "16" in mode else "uint8"
    )
    Image.fromarray(pixels if mode == "RGB" else pixels[..., 0]).save(tmp_path / "a.png")
    read_parts(tmp_path / "a.png", pixels)


def test_jpeg(tmp_path: Path) -> None:
    Image.fromarray(random_pixels()).save(tmp_path / "a.JPG", format="JPEG")
    read_parts(tmp_path / "a.JPG", np.asarray(Image.open(tmp_path / "a.JPG")))


def test_geo_tags(tmp_path: Path) -> None:
    tags = [
        (33550, "d", 3, (2.0, 2.0, 0.0), True),
        (33922, "d", 6, (0.0, 0.0, 0.0, 500000.0, 4100000.0, 0.0), True),
        (34735, "H", 4, (1, 1, 0, 0), True),
        (34737, "s", 0, "WGS 84|", True),
        (42113, "s", 0, "-9999", True),
    ]
    path = write_tiff(tmp_path / "a.tif", random_pixels(), extratags=tags)
    with open_image(path) as source:
        geo = source.geo
    assert set(geo) == {"33550", "33922", "34735", "34737", "42113"} <= {str(c) for c in GEO_TAGS}
    assert geo["33550"] == [2.0, 2.0, 0.0]
    assert geo["34735"] == [1, 1, 0, 0]
    assert geo["42113"] == "-9999"


@pytest.mark.parametrize(
    "options", [{"tile": (128, 128)}, {"rowsperstrip": 64}], ids=["tiles", "strips"]
)
def test_a_window_needs_little_memory(options: dict[str, Any], tmp_path: Path) -> None:
    """The decoded image has 48 MB."""
    pixels = np.zeros((4000, 4000, 3), np.uint8)
    pixels[2000:2100] = 9
    path = write_tiff(tmp_path / "a.tif", pixels, compression="zstd", **options)
    with open_image(path) as source:
        source.read(range(3), range(128), range(128))
        tracemalloc.start()
        found = source.read(range(3), range(1990, 2118), range(1000, 1128))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert found[:, 10:110].min() == 9
    assert most < 4e6


def test_find_images(tmp_path: Path) -> None:
    for name in ("b/2.tif", "a/1.TIFF", "c.png", ".hidden/3.tif", "b/.4.tif", "note.txt"):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folder = tmp_path / "set"
    names = [name for name, _ in find_images(str(folder))]
    assert names == ["a/1.TIFF", "b/2.tif", "c.png"]
    assert [name for name, _ in find_images(f"{folder}/*/*.[tT]*")] == ["a/1.TIFF", "b/2.tif"]
    assert find_images(str(folder / "c.png")) == [("c.png", folder / "c.png")]
