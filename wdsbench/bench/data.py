"""Data of the stream scenarios: the same random states as shards, raw float16 and ``.pt``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wdsbench.files import atomic_file
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.index import INDEX_NAME, FieldEntry
from wdsbench.shards.members import HIDDEN, META, npy_pieces
from wdsbench.shards.names import make_key
from wdsbench.shards.writer import DatasetWriter, SampleRow

RAW_NAME = "states.f16"
SHARDS_NAME = "shards"
PT_NAME = "pt"
PT_SAMPLES = 500

#: Different samples; they repeat, since what is measured does not look at values.
DISTINCT = 64


@dataclass(frozen=True)
class Shape:
    """One case of equal samples.

    Attributes:
        name: Of the case.
        samples: How many.
        layers: L.
        features: D.
        batch_size: Samples a batch.
    """

    name: str
    samples: int
    layers: int
    features: int
    batch_size: int


#: A: the last answer token of a 7B model's layers. S: small samples, where a reader's own steps
#: count.
SHAPES = {
    "A": Shape("A", 4_000, 32, 4_096, 32),
    "S": Shape("S", 64_000, 32, 256, 256),
}


def make_data(shape: Shape, folder: Path, progress: Progress = no_progress) -> None:
    """Make what is not there yet of ``folder/shards``, ``folder/states.f16`` and ``folder/pt``."""
    import torch

    rng = np.random.default_rng(0)
    states = rng.normal(size=(DISTINCT, shape.layers, 1, shape.features)).astype(np.float16)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / SHARDS_NAME / INDEX_NAME).exists():
        writer = DatasetWriter(folder / SHARDS_NAME)
        try:
            numbers = range(shape.samples)
            for i in progress(numbers, shape.samples, f"writing shards of {shape.name}"):
                row = SampleRow(make_key(f"q{i}", 0), f"q{i}", 0, 1, 1, -1, float(i % 2), 0.5)
                members = {HIDDEN: npy_pieces(states[i % DISTINCT]), META: [b"{}"]}
                writer.add("train", row, members)
            entry = FieldEntry(
                dtype="<f2", shape=[shape.layers, None, shape.features], samples=shape.samples
            )
            writer.finish(fields={"hidden": entry}, layers=[], provenance={"made": "bench"})
        except BaseException:
            writer.abort()
            raise
    if not (folder / RAW_NAME).exists():
        with atomic_file(folder / RAW_NAME) as file:
            for i in range(shape.samples):
                file.write(states[i % DISTINCT].tobytes())
    pt = folder / PT_NAME
    pt.mkdir(exist_ok=True)
    for first in range(0, shape.samples, PT_SAMPLES):
        path = pt / f"part-{first // PT_SAMPLES:04d}.pt"
        if not path.exists():
            numbers = range(first, min(first + PT_SAMPLES, shape.samples))
            rows = torch.from_numpy(states[[i % DISTINCT for i in numbers], :, 0])
            with atomic_file(path) as file:
                torch.save({"sequences": rows, "labels": [i % 2 for i in numbers]}, file)
