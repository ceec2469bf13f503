"""Unpacks a data set of images into TIFF files.

Tiles that cover their image are joined again, through a mapped file; other patches get a file each.
Integers are those that were packed; floats are exact to 2^-11 of the range of their image.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import tifffile
from numpy.typing import NDArray

from wdsbench.errors import PackError
from wdsbench.images.files import TIFF_SUFFIXES
from wdsbench.images.geo import extra_tags, window_geo
from wdsbench.images.patches import tile_places
from wdsbench.pack.image_samples import INT16_OFFSET
from wdsbench.progress import Progress
from wdsbench.shards.format.kinds import META
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample

#: First row, first column and pixels ``[C, h, w]`` of a part of an image.
Part: TypeAlias = tuple[int, int, NDArray[Any]]

_META_KEYS = ("dtype", "height", "width", "window", "range")


def unpack_images(
    index: DatasetIndex, shards: list[int], out: Path, written: list[Path], progress: Progress
) -> None:
    """Write the images of some shards to ``out``, and append each file to ``written`` before it is
    created.

    Raises:
        ShardError: The data set is damaged.
        PackError: A file exists already.
    """
    rows = np.flatnonzero(np.isin(index.columns["shard"], shards))
    names = index.question_ids(rows)
    groups = groupby(zip(names, rows.tolist(), strict=True), key=lambda pair: pair[0])
    count = sum(1 for _ in groupby(names))
    for name, group in progress(groups, count, "unpacking"):
        samples = [StoredSample(index, row, check_hash=True) for _, row in group]
        for path, shape, geo, parts in _files(index, out, name, samples):
            if path.exists():
                raise PackError(f"{path} exists; remove it, or choose another --out")
            written.append(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, shape, geo, parts)


def _files(
    index: DatasetIndex, out: Path, name: str, samples: list[StoredSample]
) -> Iterator[
    tuple[Path, tuple[int, int], dict[str, Any], Iterator[tuple[int, int, NDArray[Any]]]]
]:
    """Yield path, height and width, geo tags and parts of each file."""
    plain = PurePosixPath(name)
    if plain.is_absolute() or ".." in plain.parts or not plain.name:
        raise samples[0].error(META, f"question_id {name!r} is not a path inside a folder")
    path = out / plain
    if path.suffix.lower() not in TIFF_SUFFIXES:
        path = path.with_name(f"{path.name}.tif")
    pixels, first = index.num_features, _image_meta(samples[0])
    packed = index.file.provenance.images
    if packed is not None and packed.mode == "tile":
        size = (first["height"], first["width"])
        if len(samples) == len(tile_places(*size, pixels, packed.stride or pixels)):
            yield path, size, first.get("geo", {}), map(_placed, samples)
            return
    for sample in samples:
        meta, trace = _image_meta(sample), int(index.columns["trace"][sample.row])
        numbered = packed is None or packed.mode == "tile"
        own = path.with_name(f"{path.stem}-{trace:06d}{path.suffix}") if numbered else path
        geo = window_geo(meta.get("geo", {}), meta["window"], pixels)
        yield own, (pixels, pixels), geo, iter([(0, 0, restored(sample, meta))])


def _placed(sample: StoredSample) -> Part:
    meta = _image_meta(sample)
    return meta["window"][0], meta["window"][1], restored(sample, meta)


def _image_meta(sample: StoredSample) -> dict[str, Any]:
    meta = sample.meta().get("image")
    if not isinstance(meta, dict) or any(key not in meta for key in _META_KEYS):
        raise sample.error(META, f"image lacks one of {', '.join(_META_KEYS)}; pack it again")
    return meta


def restored(sample: StoredSample, meta: dict[str, Any]) -> NDArray[Any]:
    """Return the patch ``[C, P, P]`` in the dtype and values of its image."""
    stored = sample.array("image")
    if meta["dtype"] == "int16":
        return (stored ^ np.uint16(INT16_OFFSET)).view(np.int16)
    if meta["dtype"] != "float32":
        return stored
    low, high = np.array(meta["range"], float).T[:, :, None, None]
    values: NDArray[Any] = (stored * (high - low) + low).astype(np.float32)
    return values


def _write(
    path: Path,
    size: tuple[int, int],
    geo: dict[str, Any],
    parts: Iterator[Part],
) -> None:
    image: NDArray[Any] | None = None
    for y, x, pixels in parts:
        if image is None:
            channels = len(pixels)
            image = tifffile.memmap(
                path,
                shape=(*size, channels) if channels > 1 else size,
                dtype=pixels.dtype,
                photometric="minisblack",
                planarconfig="contig" if channels > 1 else None,
                extratags=extra_tags(geo),
                metadata=None,
            ).reshape(*size, channels)
        image[y : y + pixels.shape[1], x : x + pixels.shape[2]] = np.moveaxis(pixels, 0, -1)
