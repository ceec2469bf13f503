"""Data of the cases with equal samples: random states as shards, raw float16 and ``.pt``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from wdsbench.files import atomic_file
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.index import INDEX_NAME, FieldEntry
from wdsbench.shards.format.kinds import HIDDEN, META
from wdsbench.shards.format.members import npy_pieces
from wdsbench.shards.format.names import make_key
from wdsbench.shards.format.provenance import Provenance
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.format.tar import Pieces
from wdsbench.shards.write.writer import MEGABYTE, DatasetWriter

RAW_NAME = "states.f16"
SHARDS_NAME = "shards"
PT_NAME = "pt"
PT_SAMPLES = 500

#: Seed of all data.
SEED = 0

#: Number of distinct samples; they repeat, since rates do not depend on values.
DISTINCT = 64

#: Minimum number of shards, so that two workers of a reader that assigns whole shards both have
#: work at every scale.
LEAST_SHARDS = 4
SHARD_MB = 256.0


@dataclass(frozen=True)
class Shape:
    """A case whose samples all have one shape.

    Attributes:
        name: Name of the case.
        samples: Number of samples.
        layers: L.
        features: D.
        batch_size: Samples per batch.
    """

    name: str
    samples: int
    layers: int
    features: int
    batch_size: int

    def scaled(self, scale: float) -> Self:
        """Return this case with a share of the samples, at least one batch."""
        return replace(self, samples=max(self.batch_size, int(self.samples * scale)))

    @property
    def folder_name(self) -> str:
        """Name of the folder for the data inside ``--data``."""
        return f"{self.name}-{self.samples}"

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample's float16 states."""
        return self.layers * self.features * 2


#: A: the last answer token of a 7B model's layers. S: small samples, where the overhead per sample
#: dominates.
SHAPES = {
    "A": Shape("A", 4_000, 32, 4_096, 32),
    "S": Shape("S", 64_000, 32, 256, 256),
}


def make_shards(shape: Shape, folder: Path, progress: Progress = no_progress) -> Path:
    """Create ``folder/shards`` unless it exists, and return its path."""
    states = _states(shape)
    return make_dataset(
        folder,
        shape,
        min(SHARD_MB, shape.samples * shape.sample_bytes / MEGABYTE / LEAST_SHARDS),
        lambda i: states[i % DISTINCT],
        progress=progress,
    )


def make_raw(shape: Shape, folder: Path) -> Path:
    """Create ``folder/states.f16``, float16 ``[samples, L, D]``, and return its path."""
    states = _states(shape)
    return write_raw(folder, shape, lambda i: states[i % DISTINCT])


def make_pt(shape: Shape, folder: Path) -> Path:
    """Create ``folder/pt``, archive-format files of `PT_SAMPLES` samples, and return its path."""
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


def make_dataset(
    folder: Path,
    shape: Shape,
    shard_mb: float,
    states_of: Callable[[int], NDArray[np.float16]],
    members_of: Callable[[int], Mapping[str, Pieces]] = lambda _: {},
    *,
    progress: Progress = no_progress,
    open_writer: Callable[..., DatasetWriter] = DatasetWriter,
) -> Path:
    """Create the data set ``folder/shards`` unless it exists, and return its path.

    Args:
        folder: Folder of the case.
        shape: The case; question ``q<i>`` has label ``i % 2``.
        shard_mb: Size at which a shard is closed, in MB.
        states_of: Returns float16 ``[L, T, D]`` of sample i, C-contiguous.
        members_of: Returns the further members of sample i.
        progress: Reports samples written.
        open_writer: Called with the folder and ``shard_mb``.
    """
    shards = folder / SHARDS_NAME
    if not (shards / INDEX_NAME).exists():
        numbers = progress(range(shape.samples), shape.samples, f"writing shards of {shape.name}")
        _write_samples(open_writer(shards, shard_mb=shard_mb), numbers, states_of, members_of)
    return shards


def write_raw(folder: Path, shape: Shape, states_of: Callable[[int], NDArray[np.float16]]) -> Path:
    """Write all states to ``folder/states.f16`` unless it exists, and return its path."""
    path = folder / RAW_NAME
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            for i in range(shape.samples):
                file.write(states_of(i).tobytes())
    return path


def _write_samples(
    writer: DatasetWriter,
    numbers: Iterable[int],
    states_of: Callable[[int], NDArray[np.float16]],
    members_of: Callable[[int], Mapping[str, Pieces]],
) -> None:
    """Write the samples and close the data set; the folder is left empty on an error."""
    samples, layers, features = 0, 0, 0
    try:
        for i in numbers:
            states = states_of(i)
            layers, tokens, features = states.shape
            row = SampleRow(make_key(f"q{i}", 0), f"q{i}", 0, tokens, tokens, -1, float(i % 2), 0.5)
            members = {HIDDEN: npy_pieces(states), META: [b"{}"], **members_of(i)}
            writer.add("train", row, members)
            samples += 1
        entry = FieldEntry(dtype="<f2", shape=[layers, None, features], samples=samples)
        writer.finish(
            fields={"hidden": entry},
            layers=[],
            provenance=Provenance.model_validate({"made": "bench"}),
        )
    except BaseException:
        writer.abort()
        raise


def _states(shape: Shape) -> NDArray[np.float16]:
    """Return the distinct samples: float16 ``[DISTINCT, L, 1, D]``."""
    rng = np.random.default_rng(SEED)
    return rng.normal(size=(DISTINCT, shape.layers, 1, shape.features)).astype(np.float16)
