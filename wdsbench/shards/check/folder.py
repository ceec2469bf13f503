"""The folder of a data set: its files other than shards, and the index's statistics of layers."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import xxhash

from wdsbench.shards.check.arrays import LayerStats
from wdsbench.shards.check.problems import Problem
from wdsbench.shards.format.index import INDEX_NAME, IndexFile
from wdsbench.shards.format.table import is_table_name
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.claim import MARKER_NAME

_REDUCTION: Final = re.compile(r"reduction-([0-9a-f]{16})\.safetensors")

#: Stored states can exceed the largest state before packing by half of the last of 11 binary
#: digits, and by the smallest step of float16.
_ROUNDING: Final = 2.0**-11
_SMALLEST_STEP: Final = 2.0**-24


def layer_problems(file: IndexFile, stats: LayerStats, *, complete: bool) -> Iterator[Problem]:
    """Yield layers whose states differ from the statistics in the index.

    Args:
        file: The index.
        stats: Statistics of all samples that could be read.
        complete: True if those were all samples.
    """
    for layer, entry in enumerate(file.layers[: len(stats.infinities)]):
        for name, found, expected in (
            ("infinities", int(stats.infinities[layer]), entry.infinities),
            ("scaled samples", int(stats.scaled[layer]), entry.scaled_samples),
        ):
            if found > expected or (complete and found < expected):
                detail = f"layer {layer}: {found} {name}, the index says {expected}"
                yield Problem("value", detail, INDEX_NAME)
        bound = entry.max_abs * (1 + _ROUNDING) + _SMALLEST_STEP
        if stats.max_abs[layer] > bound:
            detail = (
                f"layer {layer} reaches {stats.max_abs[layer]:g}, the index says {entry.max_abs:g}"
            )
            yield Problem("value", detail, INDEX_NAME)
    if file.layers and len(file.layers) != len(stats.infinities):
        detail = f"{len(file.layers)} entries of layers, the states have {len(stats.infinities)}"
        yield Problem("index", detail, INDEX_NAME)


def reduction_problems(index: DatasetIndex) -> Iterator[Problem]:
    """Yield what is wrong with the file of components that states were reduced with."""
    name = index.file.provenance.reduction
    if name is None:
        return
    match = _REDUCTION.fullmatch(name)
    try:
        data = (index.folder / name).read_bytes() if match else b""
    except OSError as error:
        yield Problem("missing", f"cannot be read: {error.strerror}", name)
        return
    if match is None or xxhash.xxh3_64_hexdigest(data) != match.group(1):
        yield Problem("hash", "XXH3 is not the one in its name", name)


def leftovers(folder: Path) -> Iterator[str]:
    """Yield notes about files of a killed or a running writer."""
    marker = folder / MARKER_NAME
    if marker.is_file():
        with marker.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                yield f"{MARKER_NAME}: a run was killed here; the next pack or relabel clears it"
            except OSError:
                yield f"{MARKER_NAME}: a run is writing here now; verify again when it has ended"
    for path in sorted(folder.glob(".*.tmp")):
        yield f"{path.name}: an unfinished file of a killed run; it can be removed"


def unknown_files(index: DatasetIndex) -> Iterator[str]:
    """Yield notes about shards and tables that the index does not name."""
    shards = {entry.url for entry in index.file.shardlist}
    for path in sorted(index.folder.iterdir()):
        if path.suffix == ".tar" and path.name not in shards:
            yield f"{path.name}: a shard that the index does not name; it is not read"
        elif is_table_name(path.name) and path.name != index.file.table.file:
            yield f"{path.name}: a table that the index does not name; it can be removed"
