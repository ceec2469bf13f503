"""Images to shards: patches, ranges, labels, workers, images that cannot be used."""

from __future__ import annotations

import hashlib
import json
import math
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from image_files import random_pixels, write_tiff
from numpy.typing import NDArray
from PIL import Image
from trials import FULL_ONLY

from wdsbench.errors import ImageError, PackError
from wdsbench.images import patches
from wdsbench.pack.image_samples import ImageOptions
from wdsbench.pack.images import ImagePackReport, pack_images
from wdsbench.shards.check.verify import verify_dataset
from wdsbench.shards.format.names import split_of_question
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample

P = 16


def make_images(folder: Path, count: int = 6, **kind: Any) -> dict[str, NDArray[Any]]:
    """Write images in folders by class and return their pixels by name."""
    made = {}
    for number in range(count):
        name = f"{('good', 'crack', 'hole')[number % 3]}/{number}.tif"
        made[name] = random_pixels(40 + number, 53, seed=number, **kind)
        write_tiff(folder / name, made[name], compression="lzw", rowsperstrip=5)
    return made


def pack(source: Path | str, out: Path, workers: int = 1, **options: Any) -> ImagePackReport:
    return pack_images(
        str(source), out, ImageOptions(**{"patch_size": P, **options}), workers=workers
    )


def samples(folder: Path) -> dict[tuple[str, int], StoredSample]:
    index = DatasetIndex.open(folder)
    rows = {(r.question_id, r.trace): n for n in range(len(index)) for r in [index.sample_row(n)]}
    return {place: StoredSample(index, row, check_hash=True) for place, row in rows.items()}


def labels(folder: Path) -> dict[tuple[str, int], float]:
    return {place: float(s.index.columns["label"][s.row]) for place, s in samples(folder).items()}


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_tiles(dtype: str, tmp_path: Path) -> None:
    made = make_images(tmp_path / "in", 2, dtype=dtype)
    report = pack(tmp_path / "in", tmp_path / "out", tile=True, stride=12)
    found = samples(tmp_path / "out")
    assert report.samples == len(found)
    for name, pixels in made.items():
        height, width, _ = pixels.shape
        places = patches.tile_places(height, width, P, 12)
        low, high = pixels.min(), pixels.max()
        for trace, (y, x) in enumerate(places):
            sample = found.pop((name, trace))
            tile = np.moveaxis(pixels[y : y + P, x : x + P], -1, 0)
            expected = (tile.astype(np.float64) - low) / (float(high) - float(low))
            error = 2**-11 if dtype == "float32" else 1e-6
            np.testing.assert_allclose(sample.pixels(), expected, atol=error)
            stored = sample.array("image")
            if dtype == "int16":
                np.testing.assert_array_equal(stored, tile.astype(np.int32) + 32_768)
            elif dtype != "float32":
                np.testing.assert_array_equal(stored, tile)
            image = sample.meta()["image"]
            assert image == {
                "dtype": dtype,
                "height": height,
                "width": width,
                "window": [y, x, P, P],
                "channels": [0, 1, 2],
                "range": [[low.item(), high.item()]] * 3,
            }
    assert not found
    assert verify_dataset(tmp_path / "out").sound


def test_resized_by_default(tmp_path: Path) -> None:
    made = make_images(tmp_path / "in")
    report = pack(tmp_path / "in", tmp_path / "out", channels=(2, 0), value_range="channel")
    found = samples(tmp_path / "out")
    assert (report.samples, report.images) == (6, 6)
    assert set(found) == {(name, 0) for name in made}
    for (name, _), sample in found.items():
        stored, image = sample.array("image"), sample.meta()["image"]
        assert stored.shape == (2, P, P)
        assert image["range"] == [[int(c.min()), int(c.max())] for c in stored]
        assert image["window"] == [0, 0, *made[name].shape[:2]]
        assert image["channels"] == [2, 0]
        assert (sample.pixels().min(), sample.pixels().max()) == (0, 1)
        split = ("train", "val", "test")[int(sample.index.columns["split"][sample.row])]
        assert split == split_of_question(name)
    provenance = DatasetIndex.open(tmp_path / "out").file.provenance.model_dump(mode="json")
    assert provenance["images"] == {
        "count": 6,
        "left_out": 0,
        "patch_size": P,
        "mode": "resize",
        "stride": None,
        "channels": [2, 0],
        "range": "channel",
    }


@pytest.mark.parametrize(
    "options",
    [
        {"tile": True},
        pytest.param({}, marks=FULL_ONLY),
        pytest.param({"tile": True, "stride": 5, "on_error": "record"}, marks=FULL_ONLY),
    ],
)
def test_workers_give_the_same_bytes(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images above 3 kB are read by bands, so with one process and with two."""
    make_images(tmp_path / "in", 3)
    whole = pack(tmp_path / "in", tmp_path / "whole", **options)
    monkeypatch.setattr(patches.tile_bands, "__defaults__", (3_000,))
    found = {}
    for workers in (1, 2):
        pack(tmp_path / "in", tmp_path / f"out{workers}", workers, **options)
        found[workers] = digests(tmp_path / f"out{workers}")
    assert found[1] == found[2] == digests(tmp_path / "whole")
    assert whole.samples > 3 or "tile" not in options


def test_a_large_image_is_read_by_bands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged last strip is found when the range is measured, before a tile is written."""
    made = make_images(tmp_path / "in", 3)
    monkeypatch.setattr(patches.tile_bands, "__defaults__", (3_000,))
    read: list[int] = []
    real = patches.ImageSource.read

    def counted(source: Any, channels: Any, rows: Any = None, columns: Any = None) -> Any:
        read.append(len(rows))
        return real(source, channels, rows, columns)

    monkeypatch.setattr(patches.ImageSource, "read", counted)
    damage(tmp_path / "in" / "hole" / "2.tif")
    report = pack(tmp_path / "in", tmp_path / "out", tile=True, on_error="record")
    assert max(read) < 40
    assert {name for name, _ in samples(tmp_path / "out")} == set(made) - {"hole/2.tif"}
    assert [error.file for error in report.failures] == [str(tmp_path / "in/hole/2.tif")]


def test_the_memory_is_that_of_a_band(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoded image has 7 MB, a row of its tiles 0.6 MB."""
    pixels = np.zeros((1500, 1500, 3), np.uint8)
    pixels[::7] = 3
    options: dict[str, Any] = {"compression": "zstd", "tile": (128, 128)}
    write_tiff(tmp_path / "in" / "a.tif", pixels, **options)
    monkeypatch.setattr(patches.tile_bands, "__defaults__", (700_000,))
    pack(tmp_path / "in", tmp_path / "warm")
    tracemalloc.start()
    report = pack(tmp_path / "in", tmp_path / "out", patch_size=128, tile=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.samples == 12 * 12
    assert most < 3e6


def damage(path: Path) -> Path:
    """Overwrite the data of the last strip."""
    with tifffile.TiffFile(path) as file:
        offset = file.pages[0].dataoffsets[-1]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff\x00" * 20)
    return path


def bad_images(folder: Path) -> dict[str, str]:
    """Write images that cannot be used between good ones; return what their errors say."""
    damage(write_tiff(folder / "b.tif", random_pixels(), compression="deflate", rowsperstrip=5))
    write_tiff(folder / "c.tif", random_pixels(channels=2))
    write_tiff(folder / "d.tif", random_pixels(dtype="uint16"))
    Image.fromarray(random_pixels()).convert("P").save(folder / "e.png")
    write_tiff(folder / "f.tif", random_pixels(10, 60))
    (folder / "g.jpg").write_bytes(b"\xff\xd8\xff")
    return {
        "b.tif": "strip or tile 9 cannot be decoded",
        "c.tif": "2 channels of uint8, the images before have 3 of uint8",
        "d.tif": "3 channels of uint16, the images before have 3 of uint8",
        "e.png": "palette",
        "f.tif": "10 x 60 pixels, fewer than a tile of 16 x 16",
        "g.jpg": "copy or write it again",
    }


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=FULL_ONLY)])
def test_bad_images_are_recorded(workers: int, tmp_path: Path) -> None:
    for name in ("a.tif", "h.tif"):
        write_tiff(tmp_path / "in" / name, random_pixels())
    expected = bad_images(tmp_path / "in")
    report = pack(tmp_path / "in", tmp_path / "out", workers, tile=True, on_error="record")
    lines = (tmp_path / "out" / "failures.jsonl").read_text().splitlines()
    failures = {line["image"]: line["detail"] for line in map(json.loads, lines)}
    assert list(failures) == list(expected)
    for name, detail in expected.items():
        assert detail in failures[name]
    assert {name for name, _ in samples(tmp_path / "out")} == {"a.tif", "h.tif"}
    assert (report.images, len(report.failures)) == (2, 6)
    provenance = report.index.provenance.images
    assert provenance is not None
    assert (provenance.count, provenance.left_out) == (2, 6)
    assert verify_dataset(tmp_path / "out").sound


def test_a_bad_image_ends_the_run(tmp_path: Path) -> None:
    for name in ("a.tif", "h.tif"):
        write_tiff(tmp_path / "in" / name, random_pixels())
    for name, detail in bad_images(tmp_path / "in").items():
        with pytest.raises(ImageError, match=detail) as caught:
            pack(tmp_path / "in", tmp_path / "out", tile=True)
        assert caught.value.file == str(tmp_path / "in" / name)
        assert not (tmp_path / "out").exists()
        (tmp_path / "in" / name).unlink()
    pack(tmp_path / "in", tmp_path / "out", tile=True)


def test_nothing_but_bad_images(tmp_path: Path) -> None:
    write_tiff(tmp_path / "in" / "a.tif", random_pixels(10, 60))
    with pytest.raises(PackError, match="no image to pack: 1 cannot be used; first file"):
        pack(tmp_path / "in", tmp_path / "out", tile=True, on_error="record")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_a_constant_image_is_zeros(dtype: str, tmp_path: Path) -> None:
    write_tiff(tmp_path / "in" / "a.tif", np.full((40, 40, 2), 7, dtype))
    for options in ({}, {"tile": True}):
        out = tmp_path / f"out{len(options)}"
        pack(tmp_path / "in", out, **options)
        for sample in samples(out).values():
            assert not sample.pixels().any()
            assert sample.meta()["image"]["range"] == [[7, 7]] * 2
        assert verify_dataset(out).sound


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C leaves the folder as it was found."""
    make_images(tmp_path / "in")

    def interrupted(items: Iterable[Any], *_: object) -> Iterable[Any]:
        for number, item in enumerate(items):
            if number == 3:
                raise KeyboardInterrupt
            yield item

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(KeyboardInterrupt):
        pack_images(
            str(tmp_path / "in"),
            tmp_path / "out",
            ImageOptions(patch_size=P),
            progress=interrupted,
        )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_labels_of_folders(tmp_path: Path) -> None:
    made = make_images(tmp_path / "in")
    write_tiff(tmp_path / "in" / "loose.tif", random_pixels())
    report = pack(tmp_path / "in", tmp_path / "out")
    found = labels(tmp_path / "out")
    assert math.isnan(found.pop(("loose.tif", 0)))
    assert found == {(name, 0): float(not name.startswith("good/")) for name in made}
    assert report.unlabelled == 1
    assert report.index.labels is not None
    assert report.index.labels.source == "folders"


def test_no_labels(tmp_path: Path) -> None:
    make_images(tmp_path / "in", 3)
    (tmp_path / "in" / "good").rename(tmp_path / "in" / "other")
    report = pack(tmp_path / "in", tmp_path / "out")
    assert report.unlabelled == report.samples == 3
    assert report.index.labels is None


def test_labels_of_a_csv(tmp_path: Path) -> None:
    make_images(tmp_path / "in", 3)
    table = tmp_path / "labels.csv"
    table.write_text("image,label,tile\ngood/0.tif,0,\ngood/0.tif,1,2\ncrack/1.tif,,\n")
    report = pack(tmp_path / "in", tmp_path / "out", tile=True, labels=table)
    found = labels(tmp_path / "out")
    assert found.pop(("good/0.tif", 2)) == 1
    for (name, _), label in found.items():
        assert label == 0 if name == "good/0.tif" else math.isnan(label)
    assert report.index.labels is not None
    assert (report.index.labels.source, report.index.labels.file) == ("csv", "labels.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image\na.tif\n", "line 1: expected the columns"),
        ("image,label\nb.tif,1\n", "line 2: there is no image 'b.tif'"),
        ("image,label\na.tif,2\n", "line 2: label '2'"),
        ("image,label\na.tif,1\na.tif,0\n", "line 3: a.tif has two labels"),
        ("image,label,tile\na.tif,1,x\n", "tile 'x'"),
        ("image,label,tile\na.tif,1,1\n", "label of tile 1 of a.tif, which has 1"),
    ],
)
def test_bad_labels(text: str, message: str, tmp_path: Path) -> None:
    write_tiff(tmp_path / "in" / "a.tif", random_pixels())
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(ImageError, match=message) as caught:
        pack(tmp_path / "in", tmp_path / "out", labels=tmp_path / "l.csv")
    assert caught.value.file == str(tmp_path / "l.csv")
    assert not (tmp_path / "out").exists()
