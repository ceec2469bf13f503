"""The counters of an epoch, and the verdict made of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from builders import Packed, make_dataset
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.loader import LoaderStats


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), tokens=7)


# (counters of the epoch, text of the verdict)
VERDICTS: list[tuple[dict[str, Any], str]] = [
    ({}, "No batch was read."),
    (
        {"seconds": 10.0, "trainer_waited_seconds": 0.1, "decode_seconds": 9.9},
        "Training is the bottleneck: it waited for data 1% of 10.0 s.",
    ),
    (
        {"seconds": 10.0, "trainer_waited_seconds": 0.49, "disk_bytes": 10**12},
        "Training is the bottleneck: it waited for data 5% of 10.0 s.",
    ),
    (
        {
            "seconds": 10.0,
            "trainer_waited_seconds": 9.0,
            "decode_seconds": 9.9,
            "bytes_read": 10 * 10**9,
            "disk_bytes": 6 * 10**9,
        },
        "Training waited for data 90% of 10.0 s; the disk is the bottleneck (6.0 GB from it at"
        " 0.60 GB/s): a faster disk, fewer layers or tokens, or more memory for the page cache"
        " would help.",
    ),
    (
        {
            "seconds": 10.0,
            "trainer_waited_seconds": 5.0,
            "decode_seconds": 16.0,
            "decoders": 2,
            "bytes_read": 10 * 10**9,
            "disk_bytes": 5 * 10**9,
        },
        "Training waited for data 50% of 10.0 s; decoding is the bottleneck (its threads were busy"
        " 80% of it at 1.0 GB/s): more threads, fewer layers or tokens would help.",
    ),
    (
        {"seconds": 2.0, "trainer_waited_seconds": 2.0, "decode_seconds": 1.0, "decoders": 4},
        "Training waited for data 100% of 2.0 s; decode threads were busy only 12% of it, so Python"
        " is the bottleneck: larger batches or num_workers would help.",
    ),
]


@pytest.mark.parametrize(("numbers", "sentence"), VERDICTS)
def test_verdict(numbers: dict[str, Any], sentence: str) -> None:
    assert LoaderStats(**numbers).verdict == sentence


def test_rate() -> None:
    assert LoaderStats(bytes_read=3 * 10**9, seconds=2.0).gbps == 1.5
    assert LoaderStats(bytes_read=3 * 10**9).gbps == 0.0


# (arguments, tokens and layers of a sample)
COUNTED: list[tuple[dict[str, Any], int, int]] = [
    ({"tokens": "all"}, 7, 3),
    ({"tokens": 2, "layers": [1]}, 2, 1),
    ({"tokens": "all", "layout": "graph"}, 7, 3),
    ({"tokens": "last"}, 1, 3),
]


@pytest.mark.parametrize(
    ("choice", "tokens", "layers", "workers"),
    [
        *((*row, 0) for row in COUNTED),
        (*COUNTED[1], 2),
        *(pytest.param(*COUNTED[number], 2, marks=FULL_ONLY) for number in (0, 2, 3)),
    ],
)
def test_counters(
    packed: Packed, choice: dict[str, Any], tokens: int, layers: int, workers: int
) -> None:
    loader = TraceLoader(
        packed.folder, split=None, batch_size=7, num_workers=workers, threads=2, **choice
    )
    for epoch in range(3):
        batches = samples = 0
        for batch in loader:
            batches, samples = batches + 1, samples + len(batch)
            stats = loader.stats
            assert (stats.epoch, stats.batches, stats.samples) == (epoch, batches, samples)
            del batch
        assert loader.stats is stats
        assert stats.decoders == 2
        assert stats.samples == 60
        assert stats.batches == len(loader)
        assert stats.bytes_read == 60 * tokens * layers * 8 * 2
        assert stats.copied_batches == 0
        assert 0 < stats.trainer_waited_seconds <= stats.seconds
        assert stats.loader_waited_seconds >= 0
        assert stats.decode_seconds > 0
        assert stats.disk_bytes >= 0
        assert stats.verdict


def test_before_the_first_epoch(packed: Packed) -> None:
    loader = TraceLoader(packed.folder)
    assert loader.stats == LoaderStats()


def test_stats_of_an_epoch_left_early(packed: Packed) -> None:
    loader = TraceLoader(packed.folder, split=None, batch_size=7)
    for _ in loader:
        break
    assert (loader.stats.batches, loader.stats.samples) == (1, 7)
    for _ in loader:
        pass
    assert (loader.stats.epoch, loader.stats.samples) == (1, 60)


def test_batches_that_wait_for_a_slow_trainer(packed: Packed) -> None:
    loader = TraceLoader(packed.folder, split=None, batch_size=20)
    for _ in loader:
        time.sleep(0.05)
    assert loader.stats.loader_waited_seconds > 0


def test_disk_bytes_of_a_cached_file(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=20)
    for path in packed.folder.glob("*.tar"):
        path.read_bytes()
    for workers in (0, 1):
        loader = TraceLoader(packed.folder, split=None, num_workers=workers)
        for _ in loader:
            pass
        assert loader.stats.disk_bytes <= loader.stats.bytes_read
