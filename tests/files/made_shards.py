"""Files of known bytes, opened as shards."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np

from wdsbench import _core

ACCESS = ["map", "sparse", "pread"]


SIZE = 1_000_003


PAGE = 4096


@functools.cache
def content(seed: int, size: int = SIZE) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def make_shards(folder: Path, count: int = 1, size: int = SIZE) -> list[Path]:
    paths = [folder / f"{number}.tar" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(content(number, size))
    return paths


def open_paths(paths: list[Path], *, limit: int = 8, access: str = "map") -> _core.ShardFiles:
    sizes = [path.stat().st_size for path in paths]
    return _core.ShardFiles(list(map(os.fsencode, paths)), sizes, limit=limit, access=access)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
