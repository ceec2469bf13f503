"""Images in, a data set of patches out.

Images are written in the order of their names, so the bytes do not depend on ``workers``. A process
has one image in memory, or, of an image of more than 128 MB that can be read by parts, as many of
its rows; such an image is read twice with ``--tile``, first for its range.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import xxhash
from numpy.typing import NDArray

import wdsbench
from wdsbench.errors import ImageError, PackError
from wdsbench.images.files import FAILURES_NAME, find_images, open_image
from wdsbench.images.patches import joined_ranges, tile_bands
from wdsbench.pack.image_samples import (
    STORED,
    ImageOptions,
    ImagePart,
    ImagePreparer,
    PreparedPatch,
    check_size,
)
from wdsbench.pack.prepare import freed_memory_kept
from wdsbench.pack.workers import prepared_files
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.index import (
    FieldEntry,
    IndexFile,
    LabelsEntry,
    PackedImages,
    Provenance,
)
from wdsbench.shards.format.kinds import IMAGE, IMAGE_RANGE, KINDS, META
from wdsbench.shards.format.names import make_key, split_of_question
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.write.writer import DatasetWriter

#: First folders of a name that hold normal images (label 0).
NORMAL_FOLDERS: Final = ("normal", "good", "ok", "0")


@dataclass(frozen=True)
class ImagePackReport:
    """Result of a run: patches, the images they are of, images left out with the reason, and
    patches without a label.
    """

    index: IndexFile
    samples: int
    images: int
    bytes_written: int
    failures: list[ImageError]
    unlabelled: int


def pack_images(
    source: str,
    out: Path,
    options: ImageOptions,
    *,
    shard_mb: float = 256.0,
    workers: int = 1,
    progress: Progress = no_progress,
) -> ImagePackReport:
    """Pack the images of a folder or pattern into a data set; ``out`` is as before after an error.

    Raises:
        ImageError: There is no image, or one cannot be used (unless ``on_error="record"``).
        PackError: The folder cannot be used, the disk is full, or a worker was killed.
        ValueError: An argument is out of range.
    """
    options.check()
    if workers < 1:
        raise ValueError(f"workers is {workers}; must be at least 1")
    images = find_images(source)
    labels = ImageLabels.of([name for name, _ in images], options.labels)
    with DatasetWriter(out, shard_mb=shard_mb) as writer, freed_memory_kept():
        run = _Run(writer, options, labels)
        shown = progress(images, len(images), "reading headers") if options.tile else images
        parts = [_parts(name, path, options) for name, path in shown]
        parts = run.measured(parts, workers, progress)
        flat = [(number, part) for number, of in enumerate(parts) for part in of]
        preparer = ImagePreparer(options)
        with contextlib.closing(prepared_files(flat, preparer, workers)) as prepared:
            for (name, path), of in zip(
                progress(images, len(images), "packing"), parts, strict=True
            ):
                run.add(name, path, [next(prepared)[1] for _ in of])
        return run.finish(labels.entry)


def _parts(name: str, path: Path, options: ImageOptions) -> list[ImagePart]:
    """Return the parts of an image that are prepared one at a time; one if it cannot be opened,
    which raises the error when its turn comes.
    """
    if options.tile:
        with contextlib.suppress(ImageError), open_image(path) as source:
            check_size(source, options.pixels)
            bands = tile_bands(source, options.pixels, options.step)
            if len(bands) > 1:
                return [ImagePart(name, path, band) for band in bands]
    return [ImagePart(name, path)]


class _Run:
    """Adds images to an open writer and finishes the data set."""

    def __init__(self, writer: DatasetWriter, options: ImageOptions, labels: ImageLabels) -> None:
        self._writer, self._options, self._labels = writer, options, labels
        self._kind: tuple[int, str] | None = None
        self._failed: dict[str, ImageError] = {}
        self._samples = self._images = self._unlabelled = 0

    def measured(
        self, parts: list[list[ImagePart]], workers: int, progress: Progress
    ) -> list[list[ImagePart]]:
        """Return the parts with the range of their image where there are several; none of an image
        that cannot be used.
        """
        large = [(number, part) for number, of in enumerate(parts) if len(of) > 1 for part in of]
        if not large:
            return parts
        ranges: dict[str, list[NDArray[Any]]] = {}
        preparer = ImagePreparer(self._options, measure=True)
        with contextlib.closing(prepared_files(large, preparer, workers)) as measured:
            for _, part in progress(large, len(large), "measuring"):
                with self._recorded(part.name, part.path):
                    found = [each.ranges for each in next(measured)[1]]
                    ranges.setdefault(part.name, []).extend(found)
        whole = {name: joined_ranges(found) for name, found in ranges.items()}
        return [
            of
            if len(of) == 1
            else [replace(part, ranges=whole[part.name]) for part in of]
            if of[0].name not in self._failed
            else []
            for of in parts
        ]

    def add(self, name: str, path: Path, parts: Sequence[Iterator[PreparedPatch]]) -> None:
        """Write the patches of one image."""
        if not parts:
            return
        before = self._samples
        with self._recorded(name, path):
            for patches in parts:
                for patch in patches:
                    if self._samples == before:
                        self._check_kind(patch, path)
                    self._write(name, patch)
            self._labels.check_tiles(name, self._samples - before)
            self._images += 1
        if name in self._failed and self._samples > before:
            raise self._failed[name]  # it was whole when it was measured
        for patches in parts:  # of an image that is left out: results are taken in order
            with contextlib.suppress(ImageError):
                for _ in patches:
                    pass

    def finish(self, labels: LabelsEntry | None) -> ImagePackReport:
        """Write failures, table and index."""
        failures, options = list(self._failed.values()), self._options
        if self._kind is None:
            raise PackError(
                f"no image to pack: {len(failures)} cannot be used; first {failures[0]}"
            )
        if failures:
            lines = (
                json.dumps({"image": name, "detail": str(error.detail)}) + "\n"
                for name, error in self._failed.items()
            )
            self._writer.add_file(FAILURES_NAME, "".join(lines).encode())
        channels, dtype = self._kind
        index = self._writer.finish(
            fields={
                "image": FieldEntry(
                    dtype=STORED[dtype],
                    shape=KINDS["image"].index_shape(channels, options.pixels, 0),
                    samples=self._samples,
                    note=f"{dtype} pixels",
                ),
                "meta": FieldEntry(dtype="json", shape=[], samples=self._samples),
            },
            layers=[],
            provenance=Provenance(
                wdsbench=wdsbench.__version__,
                split_by="image",
                images=PackedImages(
                    count=self._images,
                    left_out=len(failures),
                    patch_size=options.pixels,
                    mode="tile" if options.tile else "resize",
                    stride=options.step if options.tile else None,
                    channels=None if options.channels is None else list(options.channels),
                    range="channel" if options.value_range == "channel" else "image",
                ),
            ),
            labels=labels,
        )
        return ImagePackReport(
            index=index,
            samples=self._samples,
            images=self._images,
            bytes_written=sum(shard.filesize for shard in index.shardlist),
            failures=failures,
            unlabelled=self._unlabelled,
        )

    def _check_kind(self, patch: PreparedPatch, path: Path) -> None:
        kind = (patch.channels, patch.dtype)
        if self._kind not in (None, kind):
            assert self._kind is not None
            raise ImageError(
                f"{kind[0]} channels of {kind[1]}, the images before have {self._kind[0]} of"
                f" {self._kind[1]}; pack each kind into its own data set, or choose --channels",
                file=str(path),
            )
        self._kind = kind

    def _write(self, name: str, patch: PreparedPatch) -> None:
        label, pixels = self._labels.label(name, patch.trace), self._options.pixels
        key = make_key(name, patch.trace)
        row = SampleRow(key, name, patch.trace, pixels, pixels, -1, label, math.nan)
        members = {member: patch.members[member] for member in (IMAGE, IMAGE_RANGE, META)}
        self._writer.add(split_of_question(name), row, members)
        self._samples += 1
        self._unlabelled += math.isnan(label)

    @contextlib.contextmanager
    def _recorded(self, name: str, path: Path) -> Iterator[None]:
        """Note an ImageError of the block, or raise it if images must not be left out."""
        try:
            yield
        except ImageError as error:
            if self._options.on_error == "fail" or error.file != str(path):
                raise
            self._failed.setdefault(name, error)


@dataclass(frozen=True)
class ImageLabels:
    """Labels by image, or by image and tile; ``tiles`` has the last tile of an image with one."""

    entry: LabelsEntry | None
    by_image: dict[str, float]
    by_tile: dict[tuple[str, int], float]
    tiles: dict[str, int]
    file: str = ""

    @classmethod
    def of(cls, names: Sequence[str], table: Path | None) -> ImageLabels:
        """Return the labels of a CSV, or of folders; ImageError if the CSV is damaged or names an
        image that is not there.
        """
        if table is not None:
            return cls._of_csv(set(names), table)
        folders = {name.partition("/")[0] for name in names if "/" in name}
        if folders.isdisjoint(NORMAL_FOLDERS):
            return cls(None, {}, {}, {})
        labels = {
            name: float(name.partition("/")[0] not in NORMAL_FOLDERS)
            for name in names
            if "/" in name
        }
        return cls(LabelsEntry(source="folders"), labels, {}, {})

    @classmethod
    def _of_csv(cls, names: set[str], table: Path) -> ImageLabels:
        found: dict[tuple[str, int | None], float] = {}
        try:
            data = table.read_bytes()
            lines = csv.DictReader(data.decode("utf-8-sig").splitlines())
            columns = set(lines.fieldnames or ())
            if not {"image", "label"} <= columns <= {"image", "label", "tile"}:
                raise _at(table, 1, "expected the columns image,label and optionally tile")
            for line in lines:
                name, text = line["image"], (line["label"] or "").strip()
                tile = (line.get("tile") or "").strip()
                if name not in names:
                    raise _at(
                        table,
                        lines.line_num,
                        f"there is no image {name!r}; names are paths"
                        " relative to the packed folder",
                    )
                if text not in ("", "0", "1") or not (tile.isdecimal() or not tile):
                    raise _at(
                        table,
                        lines.line_num,
                        f"label {text!r}, tile {tile!r}; expected label"
                        " 1 (anomalous), 0 (normal) or none, and the number of a tile or none",
                    )
                place = (name, int(tile) if tile else None)
                if place in found:
                    raise _at(table, lines.line_num, f"{name} has two labels; keep one")
                found[place] = float(text or "nan")
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise ImageError(f"cannot be read as CSV ({error})", file=str(table)) from error
        entry = LabelsEntry(
            source="csv",
            file=table.name,
            xxh3=f"{xxhash.xxh3_64_intdigest(data):016x}",
            column="label",
        )
        by_tile = {(name, tile): label for (name, tile), label in found.items() if tile is not None}
        return cls(
            entry,
            {name: label for (name, tile), label in found.items() if tile is None},
            by_tile,
            dict(sorted(by_tile)),
            str(table),
        )

    def label(self, name: str, tile: int) -> float:
        """Return 1 (anomalous), 0 (normal) or NaN (unknown)."""
        return self.by_tile.get((name, tile), self.by_image.get(name, math.nan))

    def check_tiles(self, name: str, count: int) -> None:
        """Raise ImageError if there is a label of a tile that the image does not have."""
        tile = self.tiles.get(name, -1)
        if tile >= count:
            detail = f"label of tile {tile} of {name}, which has {count}; they count from 0"
            raise ImageError(detail, file=self.file)


def _at(table: Path, line: int, detail: str) -> ImageError:
    return ImageError(f"line {line}: {detail}", file=str(table))
