"""How fast is the first epoch of files that are not in memory? Bound by the disk: ``dd bs=4M``.

Before each repeat the shards are dropped from the page cache. ``dd`` reads them in order and
discards the bytes; ours is a whole epoch of a new loader with shuffle. Rates are bytes of shard
files per second.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from wdsbench.bench.data import Shape, make_shards
from wdsbench.bench.pagecache import drop, resident_share
from wdsbench.bench.part import SHUFFLE, THREADS, Part, Settings, value_of
from wdsbench.bench.timing import CaseResult, consumed, spread, states_in, take_turns
from wdsbench.loader import TraceLoader

LEAST_REPEATS = 3
DD_BLOCK_BYTES = 4 << 20

#: Maximum share of the pages that may stay resident after a drop without a note that the rate is
#: partly that of memory.
RESIDENT_LIMIT = 0.01


@dataclass(frozen=True)
class _ColdRead:
    seconds: float
    resident: float


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
        ratios={
            "ours_over_dd": value_of(results, "ours-t2", "gbps") / value_of(results, "dd", "gbps")
        },
        unit="shard GB/s",
        baseline="dd",
        facts={
            **asdict(shape),
            "threads": THREADS,
            "shuffle": SHUFFLE,
            "shard_bytes": size,
            "resident_share": resident,
        },
        notes=(kept if resident <= RESIDENT_LIMIT else f"NOT COLD: {kept}",),
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
