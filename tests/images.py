"""Data sets of image patches, and their values by NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.shards.format.index import FieldEntry, Provenance
from wdsbench.shards.format.kinds import IMAGE, IMAGE_RANGE, KINDS, META
from wdsbench.shards.format.members import npy_pieces
from wdsbench.shards.format.names import make_key, split_of_question
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.write.writer import DatasetWriter

#: Returns a patch and its label, given a number and a shape.
Draw = Callable[[np.random.Generator, int, tuple[int, ...]], tuple[NDArray[Any], float]]


@dataclass
class Patches:
    """A data set and what it was made of, by key."""

    folder: Path
    stored: dict[str, NDArray[Any]] = field(default_factory=dict)
    ranges: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def pixels(self, key: str, channels: slice | list[int] = slice(None)) -> NDArray[np.float32]:
        """Return (x - low) / (high - low) in float32, zeros where a channel is constant."""
        stored, ranges = self.stored[key][channels], self.ranges[key][channels]
        values = np.zeros(stored.shape, np.float32)
        for channel, (low, high) in enumerate(ranges):
            if high > low:
                values[channel] = (stored[channel].astype(np.float32) - low) / (high - low)
        return values


def make_patches(
    folder: Path,
    dtype: str = "|u1",
    *,
    samples: int = 40,
    channels: int = 3,
    pixels: int = 16,
    shard_mb: float = 0.05,
    draw: Draw | None = None,
) -> Patches:
    """Write random patches; the first of every ten has a constant channel. ``draw`` returns other
    patches and their labels.
    """
    rng = np.random.default_rng(7)
    made = Patches(folder)
    with DatasetWriter(folder, shard_mb=shard_mb) as writer:
        for number in range(samples):
            shape = (channels, pixels, pixels)
            label = float(number % 2)
            if draw is not None:
                stored, label = draw(rng, number, shape)
            elif dtype == "<f2":
                stored = rng.random(shape).astype(np.float16)
            else:
                stored = rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
            if number % 10 == 0 and draw is None:
                stored[0] = 5
            flat = stored.reshape(channels, -1).astype(np.float32)
            ranges = np.ascontiguousarray(np.stack([flat.min(axis=1), flat.max(axis=1)], axis=1))
            name = f"scene-{number}.tif"
            key = make_key(name, 0)
            made.stored[key], made.ranges[key] = stored, ranges
            meta = json.dumps({"question_id": name, "trace": 0}).encode()
            row = SampleRow(key, name, 0, pixels, pixels, -1, label, np.nan)
            members = {IMAGE: npy_pieces(stored), IMAGE_RANGE: npy_pieces(ranges), META: [meta]}
            writer.add(split_of_question(name), row, members)
        shape_of = KINDS["image"].index_shape(channels, pixels, 0)
        writer.finish(
            fields={
                "image": FieldEntry(dtype=dtype, shape=shape_of, samples=samples),
                "meta": FieldEntry(dtype="json", shape=[], samples=samples),
            },
            layers=[],
            provenance=Provenance(),
        )
    return made


def make_scenes(
    folder: Path,
    *,
    samples: int = 200,
    labels: bool = True,
    anomalies: float = 0.25,
    **options: Any,
) -> Patches:
    """Write patches of smooth waves; a share has a bright square and label 1, the others label 0.

    Without ``labels`` all labels are NaN, and none of the training patches has a square.
    """

    def draw(
        rng: np.random.Generator, number: int, shape: tuple[int, ...]
    ) -> tuple[NDArray[Any], float]:
        place = np.linspace(0, np.pi, shape[1])
        first, second = rng.uniform(0, np.pi, (2, shape[0], 1, 1))
        wave = np.sin(place + first) * np.cos(place[:, None] + second)
        stored = (100 + 60 * wave + rng.normal(0, 2, shape)).astype(np.uint8)
        planted = rng.random() < anomalies
        split = split_of_question(f"scene-{number}.tif")
        if planted and (labels or split != "train"):
            row, column = rng.integers(0, shape[1] - 5, 2)
            stored[:, row : row + 5, column : column + 5] = 255
        return stored, float(planted) if labels else np.nan

    return make_patches(folder, samples=samples, draw=draw, **options)
