"""Images back to TIFF: joined tiles, single patches, dtypes, geo tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from image_files import random_pixels, write_tiff
from PIL import Image

from wdsbench.errors import PackError
from wdsbench.images.files import open_image
from wdsbench.images.patches import resized
from wdsbench.pack.image_samples import ImageOptions
from wdsbench.pack.images import pack_images
from wdsbench.pack.unpack import unpack

P = 16
GEO = [
    (33550, "d", 3, (2.0, 4.0, 0.0), True),
    (33922, "d", 6, (0.0, 0.0, 0.0, 5000.0, 9000.0, 0.0), True),
    (34735, "H", 4, (1, 1, 0, 0), True),
    (42113, "s", 0, "-9999", True),
]


def tags(path: Path) -> dict[int, Any]:
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        return {code: page.tags[code].value for code, *_ in GEO if code in page.tags}


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("channels", [1, 3])
def test_tiles_are_joined(dtype: str, channels: int, tmp_path: Path) -> None:
    made = {}
    for name in ("a/1.tif", "2.tiff"):
        made[name] = random_pixels(41, 50, channels, dtype)
        write_tiff(tmp_path / "in" / name, made[name], extratags=GEO)
    options = ImageOptions(patch_size=P, tile=True, stride=P if channels == 1 else 9)
    pack_images(str(tmp_path / "in"), tmp_path / "shards", options, shard_mb=0.01)
    report = unpack(tmp_path / "shards", tmp_path / "out")
    assert sorted(report.files) == [tmp_path / "out" / name for name in ("2.tiff", "a/1.tif")]
    for name, pixels in made.items():
        found = tifffile.imread(tmp_path / "out" / name).reshape(pixels.shape)
        assert found.dtype == dtype
        if dtype == "float32":
            error = (pixels.max() - pixels.min()) * 2**-11
            np.testing.assert_allclose(found, pixels, atol=error)
        else:
            np.testing.assert_array_equal(found, pixels)
        assert tags(tmp_path / "out" / name) == {code: value for code, _, _, value, _ in GEO}


def test_resized_patches(tmp_path: Path) -> None:
    write_tiff(tmp_path / "in" / "a.tif", random_pixels(64, 32), extratags=GEO)
    Image.fromarray(random_pixels(20, 30)).save(tmp_path / "in" / "a.png")
    pack_images(str(tmp_path / "in"), tmp_path / "shards", ImageOptions(patch_size=P))
    report = unpack(tmp_path / "shards", tmp_path / "out")
    assert {path.name for path in report.files} == {"a.tif", "a.png.tif"}
    for name in ("a.tif", "a.png"):
        with open_image(tmp_path / "in" / name) as source:
            expected = np.moveaxis(resized(source, P, (0, 1, 2)), 0, -1)
        written = tmp_path / "out" / (name if name == "a.tif" else "a.png.tif")
        np.testing.assert_array_equal(tifffile.imread(written), expected)
    found = tags(tmp_path / "out" / "a.tif")
    assert found[33550] == (4.0, 16.0, 0.0)
    assert found[33922] == (0.0, 0.0, 0.0, 5000.0, 9000.0, 0.0)


def test_a_lost_tile_leaves_single_patches(tmp_path: Path) -> None:
    """So does `verify --repair`, which copies the rest."""
    from wdsbench.shards.check.repair import repair_dataset
    from wdsbench.shards.read.index import DatasetIndex

    pixels = random_pixels(40, 40)
    write_tiff(tmp_path / "in" / "a.tif", pixels, extratags=GEO)
    options = ImageOptions(patch_size=P, tile=True)
    pack_images(str(tmp_path / "in"), tmp_path / "shards", options)
    index = DatasetIndex.open(tmp_path / "shards")
    place = index.place(2, "image.npy")
    with Path(place.shard).open("r+b") as file:
        file.seek(place.offset_bytes + 200)
        file.write(b"\x00\x01\x02")
    report = repair_dataset(tmp_path / "shards", tmp_path / "repaired")
    assert (report.samples, len(report.lost)) == (8, 1)
    unpack(tmp_path / "repaired", tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"a-{number:06d}.tif" for number in range(9) if number != 2]
    last = tmp_path / "out" / "a-000008.tif"
    np.testing.assert_array_equal(tifffile.imread(last), pixels[24:, 24:])
    assert tags(last)[33922] == (-24.0, -24.0, 0.0, 5000.0, 9000.0, 0.0)


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    for name in ("a.tif", "b.tif"):
        write_tiff(tmp_path / "in" / name, random_pixels())
    pack_images(str(tmp_path / "in"), tmp_path / "shards", ImageOptions(patch_size=P))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.tif").write_text("mine")
    with pytest.raises(PackError, match=r"b.tif exists"):
        unpack(tmp_path / "shards", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.tif"]
    assert (tmp_path / "out" / "b.tif").read_text() == "mine"
    with pytest.raises(ValueError, match="'npz' is not one of tif"):
        unpack(tmp_path / "shards", tmp_path / "other", file_format="npz")
