"""Inspect images: a data set of patches, or image files as `pack --images` would see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import ImageError
from wdsbench.images.files import find_images, open_image
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.kinds import IMAGE_RANGE
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample


def patch_facts(index: DatasetIndex, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return size and dtypes of the patches of a data set, and the ranges of the channels of some
    ``rows``: in the values of the images, or in stored values if ``meta.json`` does not have them.
    """
    ranges = np.full((index.num_layers, 2), [np.inf, -np.inf])
    constant = np.zeros(index.num_layers, int)
    dtypes: set[str] = set()
    for row in rows.tolist():
        sample = StoredSample(index, row)
        image = sample.meta().get("image") or {}
        found = np.array(image.get("range", sample.member_array(IMAGE_RANGE)), float)
        ranges[:, 0] = np.minimum(ranges[:, 0], found[:, 0])
        ranges[:, 1] = np.maximum(ranges[:, 1], found[:, 1])
        constant += found[:, 0] == found[:, 1]
        dtypes |= {str(image["dtype"])} if "dtype" in image else set()
    chosen = index.file.provenance.images
    numbers = (chosen and chosen.channels) or range(index.num_layers)
    return {
        "patch_size": index.num_features,
        "dtypes": sorted(dtypes),
        "channels": [
            {"channel": number, "min": low, "max": high, "constant": int(count)}
            for number, (low, high), count in zip(numbers, ranges.tolist(), constant, strict=True)
        ]
        if len(rows)
        else [],
    }


def inspect_image_files(
    sources: Sequence[str], *, progress: Progress = no_progress
) -> dict[str, Any]:
    """Return size, dtype and channels of image files, read from their headers, or their problems.

    ImageError: There is no image.
    """
    found = [each for source in sources for each in find_images(source)]
    files = []
    for name, path in progress(found, len(found), "inspecting"):
        file: dict[str, Any] = dict.fromkeys(
            ("dtype", "height", "width", "channels", "alpha", "geo", "problem")
        )
        try:
            with open_image(path) as source:
                file |= {
                    "dtype": source.dtype.name,
                    "height": source.height,
                    "width": source.width,
                    "channels": source.channels,
                    "alpha": source.alpha,
                    "geo": source.geo,
                }
        except ImageError as error:
            file["problem"] = error.detail
        files.append({"image": name, "bytes": path.stat().st_size, **file})
    return {"kind": "images", "source": ", ".join(sources), "files": files}
