"""Compare the rate of packing with copying the same files and with inflating them.

Uncompressed float16 pickles are compared with ``cp`` + fsync of the same files (at least 0.5),
``.pkl.gz`` with isal inflating them to memory in as many processes (at least 0.8). The disk limits
the first case, inflation the second; attention is not packed. Cases are interleaved; medians and
their ratios are printed, as raw (inflated) bytes per second. The time of packing includes the start
of its processes, that of isal does not: use enough files.

    python tools/bench_pack.py --data /tmp/bench_pack --files 8 --repeats 5
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from isal import igzip

from wdsbench.pack import PackOptions, pack
from wdsbench.traces.write import write_traces

LAYERS, FEATURES, TRACES = 32, 1024, 24
BUFFER_BYTES = 8 << 20
SEED = 0


def make_files(folder: Path, count: int) -> None:
    """Write ``count`` files of float16 traces, plain and gzipped, unless they exist."""
    for number in range(count):
        paths = [folder / kind / f"b{number:03d}.{kind}" for kind in ("pkl", "pkl.gz")]
        if all(path.exists() for path in paths):
            continue
        raws = []
        for place in range(TRACES):
            rng = np.random.default_rng([SEED, number, place])
            tokens = int(rng.integers(40, 80))
            states = rng.standard_normal((LAYERS, tokens, FEATURES), np.float32)
            raws.append(
                {
                    "hidden_states": list(states.astype(np.float16)),
                    "tokens": list(range(tokens)),
                    "tokens_decoded": [f"t{i}" for i in range(tokens)],
                    "generated_answer_clean": "an answer",
                    "question_id": f"q{number}-{place}",
                    "prompt_length": tokens // 2,
                    "label": place % 2,
                }
            )
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_traces(path, raws)


def copy_all(source: Path, out: Path) -> None:
    """Copy every file and flush it."""
    out.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, out / path.name)
        with (out / path.name).open("rb") as file:
            os.fsync(file.fileno())


def inflate(path: Path) -> int:
    """Inflate one file to memory and return the number of bytes."""
    with igzip.open(path) as stream:
        return len(stream.read())


def stream(path: Path) -> int:
    """Inflate one file through one small buffer, without the cost of memory."""
    buffer = bytearray(BUFFER_BYTES)
    total = 0
    with igzip.open(path) as inflated:
        while count := inflated.readinto(buffer):
            total += count
    return total


def packed(source: Path, workers: int) -> Callable[[Path], None]:
    """Return the case that packs ``source``."""
    options = PackOptions(attention=())

    def run(out: Path) -> None:
        pack([str(source)], out, options=options, workers=workers)

    return run


def timed(case: Callable[[Path], None], out: Path) -> float:
    """Return the seconds of one run; its output is removed, and earlier writes are flushed."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    start = time.perf_counter()
    case(out)
    seconds = time.perf_counter() - start
    shutil.rmtree(out, ignore_errors=True)
    return seconds


def main() -> None:
    """Make data, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    arguments = parser.parse_args()
    plain, squeezed = arguments.data / "pkl", arguments.data / "pkl.gz"
    make_files(arguments.data, arguments.files)
    raw_bytes = sum(path.stat().st_size for path in plain.iterdir())
    files = sorted(squeezed.iterdir())
    pools = {n: multiprocessing.get_context("spawn").Pool(n) for n in arguments.workers}
    cases: dict[str, Callable[[Path], None]] = {"cp-fsync": lambda out: copy_all(plain, out)}
    for n, pool in pools.items():
        cases[f"pkl-w{n}"] = packed(plain, n)
        cases[f"isal-w{n}"] = lambda _, pool=pool: pool.map(inflate, files, 1)  # type: ignore[misc]
        cases[f"isal-stream-w{n}"] = lambda _, pool=pool: pool.map(stream, files, 1)  # type: ignore[misc]
        cases[f"pkl.gz-w{n}"] = packed(squeezed, n)
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(arguments.repeats + 1):
        for name, case in cases.items():
            taken = timed(case, arguments.data / "out")
            if repeat:  # the first warms the page cache and the pools
                seconds[name].append(taken)
    for pool in pools.values():
        pool.close()
    rates = {name: raw_bytes / statistics.median(taken) / 1e9 for name, taken in seconds.items()}

    def ratio(name: str, base: str) -> float:
        pairs = zip(seconds[base], seconds[name], strict=True)
        return statistics.median(other / own for other, own in pairs)

    ratios = {}
    for n in pools:
        ratios[f"pkl-w{n} / cp-fsync"] = ratio(f"pkl-w{n}", "cp-fsync")
        ratios[f"pkl.gz-w{n} / isal-w{n}"] = ratio(f"pkl.gz-w{n}", f"isal-w{n}")
        ratios[f"pkl.gz-w{n} / isal-stream-w{n}"] = ratio(f"pkl.gz-w{n}", f"isal-stream-w{n}")
    for name, rate in rates.items():
        spread = ", ".join(f"{value:.2f}" for value in sorted(seconds[name]))
        print(f"{name:16} {rate:6.3f} GB/s   seconds {spread}")
    for name, value in ratios.items():
        print(f"{name:32} {value:5.2f}")
    print(
        json.dumps(
            {
                "scenario": "pack",
                "machine": {"cores": os.cpu_count(), "load": os.getloadavg()[0]},
                "raw_bytes": raw_bytes,
                "cases": [{"name": name, "gbps": rate} for name, rate in rates.items()],
                "ratios": ratios,
            }
        )
    )


if __name__ == "__main__":
    main()
