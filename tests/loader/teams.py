"""Loaders with worker processes, and the processes."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from typing import Any

from builders import Packed
from loaded import check_states
from scripts import until

from wdsbench import Batch, TraceLoader


def none_left() -> bool:
    """Return True if all workers end, after a garbage collection if necessary."""
    if multiprocessing.active_children():
        gc.collect()
    return until(lambda: not multiprocessing.active_children())


def load(packed: Packed, workers: int = 2, **options: Any) -> TraceLoader:
    options = {"split": None, "batch_size": 7, **options}
    return TraceLoader(packed.folder, num_workers=workers, **options)


def load_large(packed: Packed, workers: int = 2, **options: Any) -> TraceLoader:
    return load(packed, workers, **{"tokens": "all", "batch_size": 4, **options})


def pids() -> list[int]:
    return sorted(child.pid or 0 for child in multiprocessing.active_children())


def order(loader: TraceLoader) -> list[str]:
    return [key for batch in loader for key in batch.keys]


def check_all(batches: Iterator[Batch], packed: Packed) -> None:
    for batch in batches:
        check_states(batch, packed, "all")
