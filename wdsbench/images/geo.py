"""GeoTIFF tags of written files: those of the source, moved and scaled to a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

#: Tags of GeoTIFF 1.1 (OGC 19-008r4, clause 7) and of GDAL (metadata, nodata), and the types of
#: their values as tifffile names them.
GEO_TAGS: Final = {
    33550: "d",  # ModelPixelScale: (x, y, z) per pixel
    33922: "d",  # ModelTiepoint: (i, j, k, x, y, z) for each point
    34264: "d",  # ModelTransformation: 4 x 4, from (i, j, k, 1) to (x, y, z, 1)
    34735: "H",
    34736: "d",
    34737: "s",
    42112: "s",
    42113: "s",
}
_SCALE: Final = "33550"
_POINTS: Final = "33922"
_MATRIX: Final = "34264"


def window_geo(geo: dict[str, Any], window: Sequence[int], pixels: int) -> dict[str, Any]:
    """Return the tags of a patch of ``pixels`` x ``pixels`` that shows ``window`` (y, x, h, w)."""
    y, x, height, width = window
    down, along = height / pixels, width / pixels  # pixels of the source per pixel of the patch
    found = dict(geo)
    if _SCALE in found:
        scale = [float(value) for value in found[_SCALE]]
        found[_SCALE] = [scale[0] * along, scale[1] * down, *scale[2:]]
    if _POINTS in found:
        points = np.array(found[_POINTS], float).reshape(-1, 6)
        points[:, 0] = (points[:, 0] - x) / along
        points[:, 1] = (points[:, 1] - y) / down
        found[_POINTS] = points.reshape(-1).tolist()
    if _MATRIX in found:
        to_source = np.diag([along, down, 1.0, 1.0])
        to_source[:2, 3] = x, y
        matrix = np.array(found[_MATRIX], float).reshape(4, 4) @ to_source
        found[_MATRIX] = matrix.reshape(-1).tolist()
    return found


def extra_tags(geo: dict[str, Any]) -> list[tuple[int, str, int, Any, bool]]:
    """Return the tags as the argument ``extratags`` of ``tifffile.imwrite``."""
    tags: list[tuple[int, str, int, Any, bool]] = []
    for code, kind in GEO_TAGS.items():
        if str(code) not in geo:
            continue
        value = geo[str(code)]
        if kind == "s":
            tags.append((code, kind, 0, str(value), True))
        else:
            values = value if isinstance(value, list) else [value]
            tags.append((code, kind, len(values), tuple(values), True))
    return tags
