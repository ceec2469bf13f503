"""The C++ decode alone, from page cache to one buffer: the ceiling of the iterator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.bench.data import Shape
from wdsbench.bench.part import THREADS
from wdsbench.bench.timing import Work
from wdsbench.shards.format.kinds import HIDDEN
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.stream.files import open_shards


class Kernel:
    """The decode alone: prepared jobs, one buffer, shard order."""

    def __init__(self, shape: Shape, shards: Path, access: str = "map") -> None:
        index = DatasetIndex.open(shards)
        self._files = open_shards(index, access=access)
        self._shape = shape
        elements = shape.layers * shape.features
        values: dict[str, NDArray[Any] | int] = {
            "shard": index.columns["shard"],
            "hidden_offset": index.member(HIDDEN, "offset"),
            "hidden_size": index.member(HIDDEN, "size"),
            "tokens_stored": 1,
            "token_count": 1,
            "target": np.arange(len(index)) % shape.batch_size * elements,
            "layer_stride": shape.features,
        }
        self._jobs = np.zeros((len(index), len(_core.ROWS_COLUMNS)), np.int64)
        for column, name in enumerate(_core.ROWS_COLUMNS):
            self._jobs[:, column] = values.get(name, 0)
        self._layers = np.arange(shape.layers, dtype=np.int64)
        self._out = np.zeros(shape.batch_size * elements, np.float32)

    def __call__(self) -> Work:
        """Decode all samples once."""
        shape, jobs = self._shape, self._jobs
        for first in range(0, len(jobs), shape.batch_size):
            _core.decode_rows(
                self._files,
                jobs[first : first + shape.batch_size],
                self._layers,
                layers_stored=shape.layers,
                features=shape.features,
                token_padded=0,
                out=self._out,
                threads=THREADS,
            )
        return Work(len(jobs), len(jobs) * shape.layers * shape.features * 4)
