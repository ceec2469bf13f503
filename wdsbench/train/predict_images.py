"""Maps, masks and overlays of image files by a fitted detector of images.

    NAME.map.tif    float32 [H, W]: the squared error, mean over channels
    NAME.mask.tif   uint8 [H, W]: 1 where the map is above the threshold
    NAME.png        the image in 8 bits, these pixels reddened, at most 2,048 pixels a side
    scores.csv      one line per image whose files are complete

Files are written row by row under another name and renamed when an image is done.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from wdsbench.errors import DetectorError, ImageError, StoppedError
from wdsbench.files import atomic_file, nearest_folder, write_whole
from wdsbench.images.files import FAILURES_NAME, find_images, open_image
from wdsbench.images.geo import extra_tags
from wdsbench.images.source import ImageSource
from wdsbench.progress import Progress, no_progress
from wdsbench.train.checkpoint import load_detector
from wdsbench.train.config import IMAGE_DEFAULTS, PredictOptions
from wdsbench.train.error_maps import MapMaker, Strip, normalised
from wdsbench.train.fitted import FittedDetector
from wdsbench.train.predict import find_checkpoint
from wdsbench.train.ranks import choose_device
from wdsbench.train.stop import StopRequest

SCORES_NAME: Final = "scores.csv"
#: Longest side of an overlay in pixels.
OVERLAY_SIDE: Final = 2048

# Statistics and the value of missing data, which are those of the source's pixels.
_TAGS_OF_VALUES: Final = ("42112", "42113")


@dataclass(frozen=True)
class ImageScore:
    """Result for one image.

    Attributes:
        image: Its path relative to the source.
        score: Mean of the map.
        max: Largest value of the map.
        share_above: Share of the pixels above the threshold.
        anomalous: True if the score is above the threshold.
    """

    image: str
    score: float
    max: float
    share_above: float
    anomalous: bool


@dataclass
class ImagePredictions:
    """Results in the order of the images; ``failures`` are images that could not be used."""

    detector: FittedDetector
    checkpoint: Path
    images: list[ImageScore] = field(default_factory=list)
    failures: dict[str, ImageError] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return counts as JSON values."""
        return {
            "detector": self.detector.spec.name,
            "checkpoint": str(self.checkpoint),
            "threshold": self.detector.threshold,
            "images": len(self.images),
            "anomalous": sum(image.anomalous for image in self.images),
            "left_out": len(self.failures),
        }


def predict_images(
    checkpoint: str | Path,
    sources: Sequence[str],
    out: Path,
    options: PredictOptions | None = None,
    *,
    progress: Progress = no_progress,
    cancel: Callable[[], bool] | None = None,
) -> ImagePredictions:
    """Write maps, masks, overlays and scores of images to ``out``.

    Args:
        checkpoint: Folder or card of a detector, or folder of a run with one detector.
        sources: Image files, folders (at any depth) or patterns.
        options: None: the defaults; ``out``, ``split``, workers and threads are not used.
        cancel: Called before every batch; True ends the run as a signal does.

    Raises:
        ValueError: An option is out of range, or an image lies in ``out``.
        DetectorError: No checkpoint, one that does not score image files, or no usable image.
        ImageError: No image, or one cannot be used (unless ``on_error`` is ``record``).
        StoppedError: A signal or ``cancel`` ended the run; complete images are written.
    """
    options = options or PredictOptions()
    place = find_checkpoint(checkpoint)
    fitted = load_detector(place)
    _check_detector(fitted, place)
    found = _found_images(sources, out)
    nearest_folder(out)
    device = choose_device(options.device)
    assert fitted.module is not None
    assert fitted.shape is not None
    fitted.module.to(device)
    side = fitted.shape.num_features
    stride = max(1, side // 2) if options.stride is None else options.stride
    if not 1 <= stride <= side:
        raise ValueError(
            f"--stride is {stride}; must be from 1 to the patch size {side} of the detector, so"
            " that patches cover every pixel"
        )
    stop = StopRequest(cancel=cancel)
    predictions = ImagePredictions(fitted, place)

    def ask() -> None:
        stop.ask()
        if stop.requested:
            done = len(predictions.images)
            raise StoppedError(f"stopped; {done} of {len(found)} images are complete in {out}")

    batch_size = options.batch_size or IMAGE_DEFAULTS["batch_size"]
    maker = MapMaker(fitted, stride, options.join, batch_size, device, ask)
    run = _Run(maker, predictions, out, record=options.on_error == "record")
    with stop.listening():
        try:
            for _ in progress(run.rows(found), run.count(found), "predicting"):
                pass
        finally:
            run.write_lists()
    if not predictions.images:
        first = next(iter(predictions.failures.values()))
        raise DetectorError(f"none of {len(found)} images can be used; first {first}")
    return predictions


def _check_detector(fitted: FittedDetector, place: Path) -> None:
    """Raise DetectorError if a detector does not score image files."""
    name = fitted.spec.name
    if not fitted.spec.reconstructs:
        raise DetectorError(
            f"{place}: {name} scores traces; pass a detector of images, or a data set of traces"
        )
    if fitted.traces is None or fitted.traces.images is None:
        raise DetectorError(
            f"{place}: the checkpoint of {name} does not say how its images were packed; train it"
            " again on a data set of pack --images"
        )
    if fitted.threshold is None:
        raise DetectorError(
            f"{place}: the checkpoint of an unfinished training has no threshold; finish it with"
            " train --resume"
        )


def _found_images(sources: Sequence[str], out: Path) -> dict[str, Path]:
    """Return the images by name without suffix, which is that of their files."""
    found: dict[str, Path] = {}
    for source in sources:
        for name, path in find_images(source):
            if path.resolve().is_relative_to(out.resolve()):
                raise ValueError(f"image {path} lies in --out {out}; choose another folder.")
            stem = name.removesuffix(path.suffix)
            other = found.setdefault(stem, path)
            if other != path:
                raise ValueError(
                    f"{other} and {path} would both be written to {out / stem}.map.tif; predict"
                    " them into two folders."
                )
    return found


class _Run:
    """Writes the files of images one after the other."""

    def __init__(
        self, maker: MapMaker, predictions: ImagePredictions, out: Path, *, record: bool
    ) -> None:
        self._maker, self._predictions, self._out, self._record = maker, predictions, out, record

    def count(self, images: dict[str, Path]) -> int:
        """Return the number of strips of all images; an image that cannot be used has none."""
        count = 0
        for path in images.values():
            with contextlib.suppress(ImageError), open_image(path) as source:
                self._maker.channels(source)
                count += self._maker.tile_rows(source)
        return count

    def rows(self, images: dict[str, Path]) -> Iterator[None]:
        """Write the files of all images; yield after every strip."""
        for stem, path in images.items():
            name = stem + path.suffix
            try:
                with open_image(path) as source:
                    yield from self._image(name, self._out / stem, source)
            except ImageError as error:
                if not self._record:
                    raise
                self._predictions.failures[name] = error

    def _image(self, name: str, place: Path, source: ImageSource) -> Iterator[None]:
        self._maker.channels(source)  # before there is a file
        threshold = self._maker.fitted.threshold
        assert threshold is not None
        total, largest, above = 0.0, 0.0, 0
        overlay = _Overlay(source.height, source.width)
        place.parent.mkdir(parents=True, exist_ok=True)
        names = [place.with_name(place.name + end) for end in (".map.tif", ".mask.tif", ".png")]
        with _named(place), contextlib.ExitStack() as files:
            of_map, of_mask, of_overlay = (files.enter_context(atomic_file(p)) for p in names)
            _start_tiff(of_map, source, np.float32)
            _start_tiff(of_mask, source, np.uint8)
            for strip in self._maker.strips(source):
                # Of equal errors, as of constant images, none is an anomaly.
                mask = strip.errors > np.float32(threshold)
                of_map.write(strip.errors.data)
                of_mask.write(mask.view(np.uint8).data)
                overlay.add(strip, mask)
                total += float(strip.errors.sum(dtype=np.float64))
                largest = max(largest, float(strip.errors.max()))
                above += int(np.count_nonzero(mask))
                yield
            overlay.picture().save(of_overlay, format="PNG")
        count = source.height * source.width
        score = total / count
        self._predictions.images.append(
            ImageScore(name, score, largest, above / count, score > threshold)
        )

    def write_lists(self) -> None:
        """Write the scores of complete images, and the list of those left out, if any."""
        if self._predictions.images:
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(each.name for each in fields(ImageScore))
            for image in self._predictions.images:
                name, *values, anomalous = astuple(image)
                writer.writerow([name, *(f"{value:.9g}" for value in values), int(anomalous)])
            write_whole(self._out / SCORES_NAME, text.getvalue().encode("utf-8", "surrogatepass"))
        failures = self._predictions.failures
        if failures:
            lines = (
                json.dumps({"image": name, "detail": error.detail}) + "\n"
                for name, error in failures.items()
            )
            write_whole(self._out / FAILURES_NAME, "".join(lines).encode())
        else:
            (self._out / FAILURES_NAME).unlink(missing_ok=True)


class _Overlay:
    """A picture of an image, made row by row: every n-th pixel, reddened if one of the n x n from
    it on is above the threshold.
    """

    def __init__(self, height: int, width: int) -> None:
        self._step = -(-max(height, width) // OVERLAY_SIDE)
        shape = (-(-height // self._step), -(-width // self._step), 3)
        self._drawn: NDArray[np.uint8] = np.zeros(shape, np.uint8)
        self._marked = np.zeros(shape[:2], bool)

    def add(self, strip: Strip, mask: NDArray[np.bool_]) -> None:
        """Draw the rows of a strip."""
        step = self._step
        count = 3 if len(strip.pixels) >= 3 else 1
        first = -strip.top % step
        shown = strip.pixels[:count, first::step, ::step]
        rows = np.moveaxis(normalised(shown, strip.ranges[:count]), 0, -1)
        place = (strip.top + first) // step
        self._drawn[place : place + len(rows)] = np.rint(rows * 255)
        columns = np.logical_or.reduceat(mask, np.arange(0, mask.shape[1], step), axis=1)
        for row, marked in enumerate(columns, strip.top):
            self._marked[row // step] |= marked

    def picture(self) -> Image.Image:
        """Return the picture, ``[ceil(H / n), ceil(W / n)]`` pixels of RGB; call it once."""
        self._drawn[self._marked] //= 2
        self._drawn[self._marked, 0] += 128
        return Image.fromarray(self._drawn)


@contextlib.contextmanager
def _named(place: Path) -> Iterator[None]:
    """Name the files in an error of the block that names none, as of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, f"{place}.*") from error
        raise


def _start_tiff(file: BinaryIO, source: ImageSource, dtype: Any) -> None:
    """Write the header of an uncompressed image of the source's size, and seek to its pixels."""
    geo = {tag: value for tag, value in source.geo.items() if tag not in _TAGS_OF_VALUES}
    found = tifffile.imwrite(
        file,
        shape=(source.height, source.width),
        dtype=dtype,
        photometric="minisblack",
        extratags=extra_tags(geo),
        metadata=None,
        returnoffset=True,
    )
    assert found is not None
    file.seek(found[0])
