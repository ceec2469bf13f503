"""Members in a file, and the jobs that decode them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench import _core

L, T, D = 4, 5, 6


Array = np.ndarray[Any, Any]


class Members:
    """A file of members at odd places, and the jobs that decode them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = bytearray()

    def put(self, array: Array) -> tuple[int, int]:
        """Append a member and return (offset, size)."""
        stream = io.BytesIO()
        np.save(stream, array)
        self.data += b"odd"
        offset = len(self.data)
        self.data += stream.getvalue()
        return offset, len(stream.getvalue())

    def open(self, *, access: str = "map") -> _core.ShardFiles:
        self.path.write_bytes(self.data)
        return _core.ShardFiles([os.fsencode(self.path)], [len(self.data)], limit=1, access=access)


def start(
    files: _core.ShardFiles, jobs: list[list[int]], out: Array, **options: Any
) -> _core.RowsInFlight:
    layers = np.arange(options.get("layers_stored", L))
    defaults = {"layers_stored": L, "features": D, "token_padded": 0, "threads": 2}
    table = np.array(jobs, np.int64).reshape(-1, 10)
    return _core.start_rows(files, table, layers, out=out, **{**defaults, **options})


def job(
    member: tuple[int, int],
    *,
    scale: tuple[int, int] = (0, 0),
    tokens: int = T,
    target: int = 0,
    stride: int = T * D,
) -> list[int]:
    return [0, *member, *scale, tokens, 0, tokens, target, stride]


def states(seed: int = 0, shape: tuple[int, ...] = (L, T, D)) -> Array:
    return (np.random.default_rng(seed).normal(size=shape) * 10).astype(np.float16)


def big(members: Members, megabytes: int, samples: int) -> tuple[list[list[int]], Array, int]:
    """Put ``samples`` members that decode to ``megabytes`` each; return jobs, values, features."""
    features = megabytes * (1 << 20) // 4 // (L * T)
    values = states(1, (L, T, features))
    place = members.put(values)
    size = values.size
    jobs = [job(place, target=i * size, stride=T * features) for i in range(samples)]
    return jobs, values, features
