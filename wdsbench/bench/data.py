"""Data of random states, of equal samples and of whole traces: shards, raw float16, ``.pt``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from wdsbench.files import atomic_file
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.index import INDEX_NAME, FieldEntry, Provenance
from wdsbench.shards.format.kinds import HIDDEN, META
from wdsbench.shards.format.members import npy_pieces
from wdsbench.shards.format.names import make_key
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.format.tar import Pieces
from wdsbench.shards.write.writer import MEGABYTE, DatasetWriter

#: Returns float16 ``[L, T, D]`` of a sample, C-contiguous.
StatesOf = Callable[[int], NDArray[np.float16]]

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
    """A case whose samples all have one shape."""

    name: str
    samples: int
    layers: int  # L
    features: int  # D
    batch_size: int

    def scaled(self, scale: float) -> Self:
        """Return this case with a share of the samples, at least one batch."""
        return replace(self, samples=max(self.batch_size, int(self.samples * scale)))

    @property
    def folder_name(self) -> str:
        """Name of the folder for the data inside ``--data``."""
        return f"{self.name}-{self.samples}"

    @property
    def state_shape(self) -> tuple[int, int]:
        """Layers and features."""
        return self.layers, self.features

    @cached_property
    def tokens(self) -> list[int]:
        """T of every sample; the same in every run."""
        return [1] * self.samples

    @property
    def shard_mb(self) -> float:
        """Size at which a shard is closed, in MB, for `LEAST_SHARDS` or more."""
        size = sum(self.tokens) * self.layers * self.features * 2
        return min(SHARD_MB, size / MEGABYTE / LEAST_SHARDS)

    def states(self) -> StatesOf:
        """Return a function of the samples' random states; `DISTINCT` samples repeat."""
        size = (DISTINCT, self.layers, 1, self.features)
        states = np.random.default_rng(SEED).normal(size=size).astype(np.float16)
        return lambda number: states[number % DISTINCT]


@dataclass(frozen=True)
class TraceShape(Shape):
    """A case of traces ``[L, T, D]``, T uniform in ``[shortest, longest]``."""

    shortest: int
    longest: int

    @cached_property
    def tokens(self) -> list[int]:
        """T of every trace; the same in every run."""
        rng = np.random.default_rng(SEED)
        counts = rng.integers(self.shortest, self.longest + 1, self.samples)
        return [int(count) for count in counts]

    @property
    def padded_batch_bytes(self) -> int:
        """Float32 bytes of a padded batch, the mean over batches in shard order."""
        size = self.batch_size
        longest = [max(self.tokens[i : i + size]) for i in range(0, self.samples, size)]
        return int(np.mean(longest)) * size * self.layers * self.features * 4

    def states(self) -> StatesOf:
        """Return a function of the traces: slices of one random block, at different tokens."""
        size = (self.layers, 2 * self.longest, self.features)
        block = np.random.default_rng(SEED).standard_normal(size, np.float32).astype(np.float16)

        def states_of(number: int) -> NDArray[np.float16]:
            first, count = number % self.longest, self.tokens[number]
            return np.ascontiguousarray(block[:, first : first + count])

        return states_of


#: A: the last answer token of a 7B model's layers. S: small samples, where the overhead per sample
#: dominates.
SHAPES = {
    "A": Shape("A", 4_000, 32, 4_096, 32),
    "S": Shape("S", 64_000, 32, 256, 256),
}
#: B: all tokens of a 7B model's layers, 13 MB per trace.
TRACES = TraceShape("B", 150, 32, 4_096, 4, 20, 80)


def make_shards(shape: Shape, folder: Path, progress: Progress = no_progress) -> Path:
    """Create ``folder/shards`` unless it exists, and return its path."""
    return make_dataset(folder, shape, shape.states(), progress=progress)


def make_raw(shape: Shape, folder: Path) -> Path:
    """Create ``folder/states.f16``, all samples ``[L, T, D]`` in order, and return its path."""
    path = folder / RAW_NAME
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        states_of = shape.states()
        with atomic_file(path) as file:
            for i in range(shape.samples):
                file.write(states_of(i).tobytes())
    return path


def make_pt(shape: Shape, folder: Path) -> Path:
    """Create ``folder/pt``, archive-format files of `PT_SAMPLES` samples, and return its path."""
    import torch

    states_of = shape.states()
    pt = folder / PT_NAME
    pt.mkdir(parents=True, exist_ok=True)
    for first in range(0, shape.samples, PT_SAMPLES):
        path = pt / f"part-{first // PT_SAMPLES:04d}.pt"
        if not path.exists():
            numbers = range(first, min(first + PT_SAMPLES, shape.samples))
            rows = torch.from_numpy(np.stack([states_of(i)[:, 0] for i in numbers]))
            with atomic_file(path) as file:
                torch.save({"sequences": rows, "labels": [i % 2 for i in numbers]}, file)
    return pt


def make_dataset(
    folder: Path,
    shape: Shape,
    states_of: StatesOf,
    members_of: Callable[[int], Mapping[str, Pieces]] = lambda _: {},
    *,
    shard_mb: float | None = None,
    progress: Progress = no_progress,
    open_writer: Callable[..., DatasetWriter] = DatasetWriter,
) -> Path:
    """Create the data set ``folder/shards`` unless it exists, and return its path.

    Question ``q<i>`` has label ``i % 2``; ``members_of`` returns the other members of sample i.
    """
    shards = folder / SHARDS_NAME
    if not (shards / INDEX_NAME).exists():
        numbers = progress(range(shape.samples), shape.samples, f"writing shards of {shape.name}")
        writer = open_writer(shards, shard_mb=shard_mb or shape.shard_mb)
        _write_samples(writer, numbers, states_of, members_of)
    return shards


def _write_samples(
    writer: DatasetWriter,
    numbers: Iterable[int],
    states_of: StatesOf,
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
