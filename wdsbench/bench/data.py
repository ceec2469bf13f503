"""Data of cases A and S: the same random states as shards, raw float16 and ``.pt``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wdsbench.files import atomic_file
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.index import INDEX_NAME, FieldEntry
from wdsbench.shards.format.kinds import HIDDEN, META
from wdsbench.shards.format.members import npy_pieces
from wdsbench.shards.format.names import make_key
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.format.tar import Pieces
from wdsbench.shards.write.writer import MEGABYTE, DatasetWriter

RAW_NAME = "states.f16"
SHARDS_NAME = "shards"
PT_NAME = "pt"
PT_SAMPLES = 500

#: Of all data.
SEED = 0

#: Different samples; they repeat, since what is measured does not look at values.
DISTINCT = 64

#: A data set has at least this many shards, so that two workers of a reader that deals whole shards
#: both have work at every scale.
LEAST_SHARDS = 4
SHARD_MB = 256.0


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

    def scaled(self, scale: float) -> Shape:
        """Return the same with a share of the samples, at least one batch."""
        return replace(self, samples=max(self.batch_size, int(self.samples * scale)))

    @property
    def folder_name(self) -> str:
        """Where the data lies inside ``--data``."""
        return f"{self.name}-{self.samples}"

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample's float16 states."""
        return self.layers * self.features * 2


#: A: the last answer token of a 7B model's layers. S: small samples, where a reader's own steps
#: count.
SHAPES = {
    "A": Shape("A", 4_000, 32, 4_096, 32),
    "S": Shape("S", 64_000, 32, 256, 256),
}


def make_shards(shape: Shape, folder: Path, progress: Progress = no_progress) -> Path:
    """Make ``folder/shards`` where it is not there yet, and return it."""
    states = _states(shape)
    shards = folder / SHARDS_NAME
    if not (shards / INDEX_NAME).exists():
        megabytes = shape.samples * shape.sample_bytes / MEGABYTE
        write_samples(
            DatasetWriter(shards, shard_mb=min(SHARD_MB, megabytes / LEAST_SHARDS)),
            progress(range(shape.samples), shape.samples, f"writing shards of {shape.name}"),
            lambda i: states[i % DISTINCT],
        )
    return shards


def make_raw(shape: Shape, folder: Path) -> Path:
    """Make ``folder/states.f16``, float16 ``[samples, L, D]``, and return it."""
    states = _states(shape)
    path = folder / RAW_NAME
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            for i in range(shape.samples):
                file.write(states[i % DISTINCT].tobytes())
    return path


def make_pt(shape: Shape, folder: Path) -> Path:
    """Make ``folder/pt``, files of `PT_SAMPLES` samples as the archive format has them, and return
    it.
    """
    import torch

    states = _states(shape)
    pt = folder / PT_NAME
    pt.mkdir(parents=True, exist_ok=True)
    for first in range(0, shape.samples, PT_SAMPLES):
        path = pt / f"part-{first // PT_SAMPLES:04d}.pt"
        if not path.exists():
            numbers = range(first, min(first + PT_SAMPLES, shape.samples))
            rows = torch.from_numpy(states[[i % DISTINCT for i in numbers], :, 0])
            with atomic_file(path) as file:
                torch.save({"sequences": rows, "labels": [i % 2 for i in numbers]}, file)
    return pt


def write_samples(
    writer: DatasetWriter,
    numbers: Iterable[int],
    states_of: Callable[[int], NDArray[np.float16]],
    more_of: Callable[[int], Mapping[str, Pieces]] = lambda _: {},
) -> None:
    """Write question ``q<i>`` for each number, with label ``i % 2``, and close the data set.

    Args:
        writer: Of an empty folder, which is left empty where this raises.
        numbers: At least one.
        states_of: Returns ``[L, T, D]`` of a number, C-contiguous.
        more_of: Returns a number's further members.
    """
    samples, layers, features = 0, 0, 0
    try:
        for i in numbers:
            states = states_of(i)
            layers, tokens, features = states.shape
            row = SampleRow(make_key(f"q{i}", 0), f"q{i}", 0, tokens, tokens, -1, float(i % 2), 0.5)
            members = {HIDDEN: npy_pieces(states), META: [b"{}"], **more_of(i)}
            writer.add("train", row, members)
            samples += 1
        entry = FieldEntry(dtype="<f2", shape=[layers, None, features], samples=samples)
        writer.finish(fields={"hidden": entry}, layers=[], provenance={"made": "bench"})
    except BaseException:
        writer.abort()
        raise


def _states(shape: Shape) -> NDArray[np.float16]:
    """Return the different samples: float16 ``[DISTINCT, L, 1, D]``."""
    rng = np.random.default_rng(SEED)
    return rng.normal(size=(DISTINCT, shape.layers, 1, shape.features)).astype(np.float16)
