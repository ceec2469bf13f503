"""Maps, masks and overlays of image files are those of a plain reference, in bounded memory."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from forks import start_code
from image_files import random_pixels, write_tiff
from limits import files_end_at
from numpy.typing import NDArray
from PIL import Image

from wdsbench.detect.registry import DetectorShape, detector_spec
from wdsbench.errors import DetectorError, ImageError, StoppedError, WdsbenchError
from wdsbench.pack.image_samples import ImageOptions
from wdsbench.pack.images import pack_images
from wdsbench.shards.read.open import open_index
from wdsbench.train import error_maps, predict_images
from wdsbench.train.checkpoint import load_detector, save_detector
from wdsbench.train.config import PredictOptions
from wdsbench.train.fitted import FittedDetector, StoredImages, StoredTraces
from wdsbench.train.predict import predict

P = 16
GEO = [
    (33550, "d", 3, (10.0, 10.0, 0.0), True),
    (33922, "d", 6, (0.0, 0.0, 0.0, 500000.0, 4100000.0, 0.0), True),
    (34735, "H", 4, (1, 1, 0, 0), True),
    (42113, "s", 0, "0", True),
]
CPU = PredictOptions(device="cpu", batch_size=3)


def detector(
    channels: int = 3,
    threshold: float | None = 0.09,
    pixels: int = P,
    name: str = "autoencoder",
    value_range: str = "image",
    packed: tuple[int, ...] | None = None,
) -> FittedDetector:
    """Return a detector that was not trained."""
    shape = DetectorShape(channels, pixels, hidden=4, depth=1)
    spec = detector_spec(name)
    torch.manual_seed(1)
    stored = StoredImages("uint8", value_range, packed)
    return FittedDetector(
        spec,
        shape=shape,
        module=spec.build(shape).eval(),  # type: ignore[misc]
        threshold=threshold,
        traces=StoredTraces(channels, pixels, images=stored),
    )


def saved(folder: Path, fitted: FittedDetector) -> Path:
    save_detector(fitted, folder / "detector")
    return folder / "detector"


def reference(
    fitted: FittedDetector, pixels: NDArray[Any], stride: int, join: str, value_range: str
) -> NDArray[np.float64]:
    """Return the joined map of ``[H, W, C]`` with one tile after the other."""
    image = np.moveaxis(pixels.astype(np.float64), -1, 0)
    axes = (1, 2) if value_range == "channel" else None
    low, high = (end(image, axis=axes, keepdims=True) for end in (np.min, np.max))
    image = (image - low) / (high - low)
    height, width = image.shape[1:]
    found: list[list[list[float]]] = [[[] for _ in range(width)] for _ in range(height)]
    assert fitted.module is not None
    for y in {*range(0, height - P + 1, stride), height - P}:
        for x in {*range(0, width - P + 1, stride), width - P}:
            tile = torch.tensor(image[None, :, y : y + P, x : x + P], dtype=torch.float32)
            with torch.no_grad():
                again = fitted.module.reconstruct(tile)  # type: ignore[operator]
            errors = (tile - again).double().square().mean(dim=1)[0]
            for row in range(P):
                for column in range(P):
                    found[y + row][x + column].append(float(errors[row, column]))
    joined = {"mean": np.mean, "max": np.max}[join]
    return np.array([[joined(cell) for cell in row] for row in found])  # fails if one is empty


@pytest.mark.parametrize(
    ("join", "stride", "value_range"), [("mean", 7, "channel"), ("max", 5, "image")]
)
def test_maps_are_those_of_the_reference(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    join: str,
    stride: int,
    value_range: str,
) -> None:
    monkeypatch.setattr(error_maps, "READ_BYTES", 4000)  # several bands
    pixels = random_pixels(40, 49)
    write_tiff(tmp_path / "in" / "deep" / "a.tif", pixels // 2, extratags=GEO)
    write_tiff(tmp_path / "in" / "b.tif", pixels, rowsperstrip=4, compression="deflate")
    fitted = detector(value_range=value_range)
    options = replace(CPU, join=join, stride=stride)
    out = tmp_path / "out"
    found = predict_images.predict_images(
        saved(tmp_path, fitted), [str(tmp_path / "in")], out, options
    )
    assert fitted.threshold is not None
    for score, place, values in zip(
        found.images, ("b", "deep/a"), (pixels, pixels // 2), strict=True
    ):
        expected = reference(fitted, values, stride, join, value_range)
        errors = tifffile.imread(out / f"{place}.map.tif")
        assert (errors.dtype, errors.shape) == (np.float32, (40, 49))
        np.testing.assert_allclose(errors, expected, rtol=1e-4, atol=1e-6)
        mask = tifffile.imread(out / f"{place}.mask.tif")
        assert mask.dtype == np.uint8
        np.testing.assert_array_equal(mask, errors > np.float32(fitted.threshold))
        assert 0 < mask.sum() < mask.size
        overlay = np.asarray(Image.open(out / f"{place}.png"))
        axes = (0, 1) if value_range == "channel" else None
        low, high = (end(values.astype(float), axis=axes) for end in (np.min, np.max))
        drawn = (values - low) / (high - low) * 255
        reddened = np.where(mask[..., None], drawn // 2 + (128, 0, 0), drawn)
        np.testing.assert_allclose(overlay, reddened, atol=1.01)
        assert score.image == f"{place}.tif"
        assert score.score == pytest.approx(errors.mean(dtype=np.float64))
        assert (score.max, score.share_above) == (errors.max(), mask.mean())
        assert score.anomalous == (score.score > fitted.threshold)
    lines = list(csv.DictReader((out / "scores.csv").read_text().splitlines()))
    assert [line["image"] for line in lines] == ["b.tif", "deep/a.tif"]
    assert float(lines[0]["score"]) == pytest.approx(found.images[0].score)
    assert lines[0]["anomalous"] == str(int(found.images[0].anomalous))
    for name in ("map", "mask"):
        with tifffile.TiffFile(out / "deep" / f"a.{name}.tif") as file:
            tags = {tag.code: tag.value for tag in file.pages[0].tags}  # type: ignore[union-attr]
        assert [tuple(tags[code]) for code, *_ in GEO[:3]] == [value for *_, value, _ in GEO[:3]]
        assert 42113 not in tags  # 0 is no missing value of a mask
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == sorted(
        [*(f"{x}.{end}" for x in "ab" for end in ("map.tif", "mask.tif", "png")), "scores.csv"]
    )


@pytest.mark.parametrize(
    ("dtype", "value_range", "channels"),
    [("uint8", "image", (2, 0)), ("int16", "channel", None), ("float32", "image", None)],
)
def test_tiles_are_scored_as_those_of_a_data_set(
    tmp_path: Path, dtype: str, value_range: str, channels: tuple[int, ...] | None
) -> None:
    write_tiff(tmp_path / "in" / "a.tif", random_pixels(32, 48, dtype=dtype))
    options = ImageOptions(patch_size=P, tile=True, value_range=value_range, channels=channels)
    pack_images(str(tmp_path / "in"), tmp_path / "shards", options)
    stored = StoredTraces.of(open_index(tmp_path / "shards"))
    assert stored.images == StoredImages(dtype, value_range, channels)
    fitted = replace(detector(stored.num_layers), traces=stored)
    if channels is None:  # reads some of the packed channels
        fitted = replace(detector(2), traces=stored, layers=(0, 2))
    checkpoint = saved(tmp_path, fitted)
    assert load_detector(checkpoint).traces == stored
    expected = {
        sample.trace: sample.score
        for sample in predict(
            checkpoint, tmp_path / "shards", replace(CPU, split="all", threads=1)
        ).samples
    }
    predict_images.predict_images(
        checkpoint, [str(tmp_path / "in")], tmp_path / "out", replace(CPU, stride=P)
    )
    errors = tifffile.imread(tmp_path / "out" / "a.map.tif")
    tiles = errors.reshape(2, P, 3, P).mean(axis=(1, 3)).reshape(-1)
    assert dict(enumerate(tiles)) == pytest.approx(expected, rel=1e-5)


def test_overlays_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_images, "OVERLAY_SIDE", 20)
    pixels = np.full((40, 50, 1), 100, np.uint8)
    pixels[:20] = 0
    pixels[31, 44] = 255  # not one of the pixels that are drawn
    Image.fromarray(pixels[..., 0]).save(tmp_path / "a.png")
    fitted = detector(1, threshold=0.3, name="pca")  # the error is the square
    predict_images.predict_images(
        saved(tmp_path, fitted), [str(tmp_path / "a.png")], tmp_path / "out", CPU
    )
    mask = tifffile.imread(tmp_path / "out" / "a.mask.tif")
    assert np.argwhere(mask).tolist() == [[31, 44]]
    overlay = np.asarray(Image.open(tmp_path / "out" / "a.png"))
    assert overlay.shape == (14, 17, 3)
    expected = np.zeros((14, 17, 3), np.uint8)
    expected[7:] = 100
    expected[10, 14] = (178, 50, 50)
    np.testing.assert_array_equal(overlay, expected)


#: How an image or an option is wrong, and what the error says.
WRONG: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "dtype": (
        lambda path: write_tiff(path, random_pixels(dtype="uint16")),
        {},
        "its pixels are uint16, the detector was trained on uint8; convert",
    ),
    "channels": (
        lambda path: write_tiff(path, random_pixels(channels=2)),
        {},
        "has 2 channels, the detector was trained on 3; convert",
    ),
    "missing channel": (
        lambda path: write_tiff(path, random_pixels(channels=4)),
        {"packed": (0, 1, 5)},
        "channel 5, which the detector reads, is missing",
    ),
    "transparency": (
        lambda path: write_tiff(
            path,
            random_pixels(channels=3),
            photometric="minisblack",
            extrasamples=["unspecified", "unassalpha"],
        ),
        {},
        "channel 2, which the detector reads, is transparency",
    ),
    "small": (
        lambda path: write_tiff(path, random_pixels(15, 40)),
        {},
        "has 15 x 40 pixels, fewer than a patch of 16 x 16; pad it",
    ),
    "broken": (
        lambda path: path.write_bytes(b"II*\0" + bytes(20)),
        {},
        "",
    ),
    "broken inside": (
        lambda path: _spoil(write_tiff(path, random_pixels(), compression="deflate")),
        {},
        "strip or tile 0 cannot be decoded",
    ),
}


def _spoil(path: Path) -> None:
    with tifffile.TiffFile(path) as file:
        place = file.pages[0].dataoffsets[0]  # type: ignore[union-attr]
    data = bytearray(path.read_bytes())
    data[place : place + 40] = bytes(40)
    path.write_bytes(data)


@pytest.mark.parametrize("case", WRONG)
def test_images_that_cannot_be_used(tmp_path: Path, case: str) -> None:
    make, images, message = WRONG[case]
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    make(folder / "b.tif")
    checkpoint = saved(tmp_path, detector(**images))
    with pytest.raises(ImageError) as caught:
        predict_images.predict_images(checkpoint, [str(folder)], out, CPU)
    assert str(caught.value).startswith(f"file {folder / 'b.tif'}: ")
    assert message in str(caught.value)
    assert not [path for path in out.rglob("*") if path.is_file()]
    record = replace(CPU, on_error="record")
    with pytest.raises(DetectorError, match=r"none of 1 images can be used; first file .*b\.tif"):
        predict_images.predict_images(checkpoint, [str(folder)], out, record)
    if images:
        return
    write_tiff(folder / "a.tif", random_pixels(P, P))
    found = predict_images.predict_images(checkpoint, [str(folder)], out, record)
    assert [image.image for image in found.images] == ["a.tif"]
    assert found.summary()["left_out"] == 1
    (line,) = (out / "failures.jsonl").read_text().splitlines()
    assert json.loads(line) == {"image": "b.tif", "detail": found.failures["b.tif"].detail}
    assert not [*out.glob("b.*"), *out.glob(".*")]
    (folder / "b.tif").unlink()
    predict_images.predict_images(checkpoint, [str(folder)], out, record)
    assert not (out / "failures.jsonl").exists()


def test_refusals(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    write_tiff(folder / "a.tif", random_pixels(P, P))
    good = detector()
    closed = FittedDetector(detector_spec("length"), threshold=1.0)
    assert good.traces is not None
    unknown = replace(good, traces=replace(good.traces, images=None))

    def refused(
        fitted: FittedDetector,
        error: type[Exception],
        message: str,
        place: Path = out,
        source: Path = folder,
        **options: Any,
    ) -> None:
        checkpoint = saved(tmp_path, fitted)
        with pytest.raises(error, match=message):
            predict_images.predict_images(checkpoint, [str(source)], place, replace(CPU, **options))
        assert not out.exists()

    refused(closed, DetectorError, "length scores traces; pass a detector of images")
    refused(unknown, DetectorError, "does not say how its images were packed; train it again")
    refused(replace(good, threshold=None), DetectorError, "unfinished training has no threshold")
    refused(good, ValueError, "--stride is 0; must be from 1 to the patch size 16", stride=0)
    refused(good, ValueError, "--stride is 17; must be", stride=17)
    refused(good, ValueError, "join 'sum' is not one of mean, max", join="sum")
    refused(good, ValueError, "on_error 'skip' is not one of fail, record", on_error="skip")
    refused(good, ValueError, "batch_size is 0; it must be at least 1", batch_size=0)
    refused(good, ValueError, r"a\.tif lies in --out", place=folder)
    refused(good, ImageError, "no image in", source=tmp_path / "none.tif")
    refused(good, ValueError, "cannot be a folder", place=folder / "a.tif" / "out")
    nan = detector()
    assert nan.module is not None
    with torch.no_grad():
        next(nan.module.parameters()).fill_(math.nan)
    checkpoint = saved(tmp_path, nan)
    with pytest.raises(DetectorError, match=r"errors that are not finite for .*a\.tif; train it"):
        predict_images.predict_images(checkpoint, [str(folder)], out, CPU)
    assert not [*out.iterdir()]
    write_tiff(folder / "a.tiff", random_pixels(P, P))
    with pytest.raises(ValueError, match=r"a\.tif and .*a\.tiff would both be written to"):
        predict_images.predict_images(checkpoint, [str(folder)], out, CPU)


def test_cancelled_runs_leave_complete_images(tmp_path: Path) -> None:
    for name in "ab":
        write_tiff(tmp_path / "in" / f"{name}.tif", random_pixels())
    checkpoint, out = saved(tmp_path, detector()), tmp_path / "out"
    asked = 0

    def cancel() -> bool:
        nonlocal asked
        asked += 1
        return (out / "a.png").exists() and asked % 5 == 0

    with pytest.raises(StoppedError, match="stopped; 1 of 2 images are complete in"):
        predict_images.predict_images(checkpoint, [str(tmp_path / "in")], out, CPU, cancel=cancel)
    names = ["a.map.tif", "a.mask.tif", "a.png", "scores.csv"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert (out / "scores.csv").read_text().count("\n") == 2
    assert asked < 40


def test_full_disk(tmp_path: Path) -> None:
    write_tiff(tmp_path / "in" / "a.tif", random_pixels(200, 200))
    checkpoint, out = saved(tmp_path, detector()), tmp_path / "out"
    options = replace(CPU, stride=P)
    with files_end_at(80_000), pytest.raises(OSError, match=r"out/a\.\*"):
        predict_images.predict_images(checkpoint, [str(tmp_path / "in")], out, options)
    assert not [*out.iterdir()]


def test_a_data_set_of_another_range_is_refused(tmp_path: Path) -> None:
    write_tiff(tmp_path / "in" / "a.tif", random_pixels(32, 48))
    options = ImageOptions(patch_size=P, tile=True, value_range="channel")
    pack_images(str(tmp_path / "in"), tmp_path / "shards", options)
    checkpoint = saved(tmp_path, detector())
    with pytest.raises(WdsbenchError, match="range of the channel, the detector was trained on im"):
        predict(checkpoint, tmp_path / "shards", replace(CPU, split="all"))


MEMORY = """
import sys
from pathlib import Path
from train.test_predict_images import CPU, measured_run

print(measured_run(Path(sys.argv[1])))
"""


def measured_run(home: Path) -> float:
    """Return the growth of the peak memory, in MB, over that of a small image."""
    error_maps.READ_BYTES = 1_000_000  # type: ignore[misc]
    options = replace(CPU, stride=64)

    def peak_mb(name: str) -> float:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from now
        predict_images.predict_images(home / "detector", [str(home / name)], home / "out", options)
        (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "HWM" in x)
        return int(line.split()[1]) * 1024 / 1e6

    small = peak_mb("small.tif")
    return peak_mb("large.tif") - small


def test_memory_does_not_grow_with_the_image(tmp_path: Path) -> None:
    saved(tmp_path, detector(pixels=64, name="pca"))
    for name, height in (("small", 600), ("large", 8_000)):
        image = tifffile.memmap(tmp_path / f"{name}.tif", shape=(height, 512, 3), dtype=np.uint8)
        image[:, ::2] = 200
        image.flush()
        del image
    process = start_code(MEMORY, tmp_path)
    printed, errors = process.communicate(60)
    assert process.returncode == 0, errors
    assert float(printed) < 6  # the image has 12 MB, its map 16 MB
