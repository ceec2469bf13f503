"""How fast is the first epoch of files that are not in memory? Bound by the disk: ``dd bs=4M``.

Before each repeat the shards are dropped from the page cache. ``dd`` reads them in order and
discards the bytes; ours is a whole epoch of a new loader with shuffle. Rates are bytes of shard
files per second.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from wdsbench.bench.data import Shape, make_shards
from wdsbench.bench.part import SHUFFLE, THREADS, Part, Settings, rate_ratios
from wdsbench.bench.timing import CaseResult, consumed, spread, states_in, take_turns
from wdsbench.errors import WdsbenchError
from wdsbench.loader import TraceLoader

LEAST_REPEATS = 3
DD_BLOCK_BYTES = 4 << 20

#: Maximum share of the pages that may stay resident after a drop without a note that the rate is
#: partly that of memory.
RESIDENT_LIMIT = 0.01


@dataclass(frozen=True)
class _ColdRead:
    seconds: float
    resident: float  # share of the pages after the drop


def cold_part(shape: Shape, settings: Settings) -> Part:
    """Return the rates of the first epoch over dropped files."""
    shape = shape.scaled(settings.scale)
    shards = make_shards(shape, settings.data / shape.folder_name, settings.progress)
    files = sorted(shards.glob("*.tar"))
    size = sum(path.stat().st_size for path in files)

    def epoch() -> None:
        loader = TraceLoader(shards, batch_size=shape.batch_size, shuffle=SHUFFLE, threads=THREADS)
        consumed(states_in(loader), shape.samples)

    found = take_turns(
        {
            "dd": _dropped_first(shards, lambda: read_all(files)),
            "ours-t2": _dropped_first(shards, epoch),
        },
        max(settings.repeats, LEAST_REPEATS),
        progress=settings.progress,
        what=f"reading {shape.name} from a cold cache",
    )
    samples = {"dd": None, "ours-t2": shape.samples}
    results = [_result(name, reads, size, samples[name]) for name, reads in found.items()]
    resident = max(read.resident for reads in found.values() for read in reads)
    kept = f"{resident:.2%} of the pages stayed in the page cache after a drop, at the most"
    return Part(
        name=f"cold-{shape.name}",
        title=f"cold-{shape.name}: {len(files)} shards of {size / 1e9:.2f} GB, page cache dropped",
        results=results,
        notes=(kept if resident <= RESIDENT_LIMIT else f"NOT COLD: {kept}",),
        ratios=rate_ratios(results),
        unit="shard GB/s",
        baseline="dd",
        facts={
            **asdict(shape),
            "threads": THREADS,
            "shuffle": SHUFFLE,
            "shard_bytes": size,
            "resident_share": resident,
        },
    )


def read_all(files: Sequence[Path]) -> None:
    """Read the files in order in blocks of 4 MiB, with ``dd`` if it is installed."""
    program = shutil.which("dd")
    for path in files:
        if program is not None:
            words = [program, f"if={path}", "of=/dev/null", f"bs={DD_BLOCK_BYTES}"]
            subprocess.run(words, check=True, capture_output=True)
        else:
            block = bytearray(DD_BLOCK_BYTES)
            with path.open("rb", buffering=0) as file:
                while file.readinto(block):
                    pass


def drop(paths: Iterable[Path]) -> None:
    """Drop the files' pages from the page cache (Linux only); pages mapped by a process stay."""
    if not hasattr(os, "posix_fadvise"):
        raise WdsbenchError("reads from a cold page cache can be measured on Linux only")
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(paths: Iterable[Path]) -> float:
    """Return the share of the files' pages in memory, by ``mincore(2)``, without reading them."""
    libc = ctypes.CDLL(None, use_errno=True)
    resident = pages = 0
    for path in paths:
        size = path.stat().st_size
        if not size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            count = -(-size // mmap.PAGESIZE)
            answer = np.zeros(count, np.uint8)
            view = np.frombuffer(mapped, np.uint8)
            failed = libc.mincore(
                ctypes.c_void_p(view.ctypes.data),
                ctypes.c_size_t(size),
                ctypes.c_void_p(answer.ctypes.data),
            )
            del view  # a mapping with views cannot be closed
            if failed:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))
        resident += int((answer & 1).sum())  # the other bits are reserved
        pages += count
    return resident / pages if pages else 0.0


def _dropped_first(shards: Path, read: Callable[[], None]) -> Callable[[], _ColdRead]:
    def turn() -> _ColdRead:
        gc.collect()  # a loader that maps the shards would keep their pages
        files = list(shards.iterdir())  # the index and its table too
        drop(files)
        resident = resident_share(files)
        start = time.perf_counter()
        read()
        return _ColdRead(time.perf_counter() - start, resident)

    return turn


def _result(name: str, reads: Sequence[_ColdRead], size: int, samples: int | None) -> CaseResult:
    seconds = [read.seconds for read in reads]
    middle = statistics.median(seconds)
    return CaseResult(
        name,
        spread([size / taken for taken in seconds]),
        len(reads),
        gbps=size / middle / 1e9,
        samples_per_s=None if samples is None else samples / middle,
        seconds=middle,
        epochs=len(reads),
    )
