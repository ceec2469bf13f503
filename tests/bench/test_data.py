"""Data is made once, is valid, and keeps its shape at every scale."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset
import xxhash
from trials import trials

from wdsbench import TraceLoader
from wdsbench.bench.data import (
    LEAST_SHARDS,
    SHAPES,
    TRACES,
    Shape,
    TraceShape,
    make_pt,
    make_raw,
    make_shards,
)
from wdsbench.bench.memory import make_holes
from wdsbench.bench.opening import SHARD_SAMPLES, make_many
from wdsbench.shards.read.index import DatasetIndex

# webdataset leaves shards to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_data_is_made_once(
    data: Path, shape: Shape, trace_data: Path, trace_shape: TraceShape
) -> None:
    def times() -> dict[Path, int]:
        files = [*data.rglob("*"), *trace_data.rglob("*")]
        return {path: path.stat().st_mtime_ns for path in files}

    before = times()
    make_shards(shape, data)
    make_raw(shape, data)
    make_pt(shape, data)
    make_shards(trace_shape, trace_data)
    make_raw(trace_shape, trace_data)
    assert times() == before


def test_there_are_shards_for_every_worker(data: Path, trace_data: Path) -> None:
    for folder in (data, trace_data):
        assert len(DatasetIndex.open(folder / "shards").file.shardlist) >= LEAST_SHARDS - 1


def test_a_scale_keeps_a_batch() -> None:
    assert SHAPES["A"].scaled(0.02).samples == 80
    assert SHAPES["S"].scaled(1e-9).samples == SHAPES["S"].batch_size
    assert TRACES.scaled(0.02).samples == TRACES.batch_size


def test_traces_have_all_lengths() -> None:
    assert min(TRACES.tokens) == 20
    assert max(TRACES.tokens) == 80
    assert TRACES.tokens == TRACES.scaled(1.0).tokens


@pytest.mark.trials
def test_many_small_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_shard = trials(100, SHARD_SAMPLES)
    monkeypatch.setattr("wdsbench.bench.opening.SHARD_SAMPLES", in_shard)
    samples = 2 * in_shard + in_shard // 2
    shards = make_many(Shape("many", samples, 2, 8, 256), tmp_path)
    index = DatasetIndex.open(shards)
    assert [entry.nsamples for entry in index.file.shardlist] == [in_shard] * 2 + [in_shard // 2]
    assert sum(len(batch) for batch in TraceLoader(shards, batch_size=256)) == samples


def test_holes_are_a_data_set_of_zeros(tmp_path: Path) -> None:
    shape = TraceShape("holes", 6, 4, 1_024, 2, 50, 50)
    shards = make_holes(shape, tmp_path)
    index = DatasetIndex.open(shards)
    loader = TraceLoader(shards, tokens="all", layout="pad", batch_size=2, verify="hash")
    seen = 0
    for batch in loader:
        assert batch.hidden is not None
        assert batch.hidden.shape == (2, 4, 50, 1_024)
        assert not batch.hidden.any()
        seen += len(batch)
    assert seen == shape.samples
    urls = []
    for entry in index.file.shardlist:
        path = shards / entry.url
        urls.append(str(path))
        content = path.read_bytes()
        assert len(content) == entry.filesize
        assert xxhash.xxh3_64_hexdigest(content) == entry.xxh3
        with tarfile.open(path) as tar:
            assert len(tar.getnames()) == 2 * entry.nsamples
        if path.stat().st_size > 1 << 20:
            assert path.stat().st_blocks * 512 < path.stat().st_size / 2
    samples = webdataset.WebDataset(urls, shardshuffle=False).decode().to_tuple("hidden.npy")
    arrays = [array for (array,) in samples]
    assert len(arrays) == shape.samples
    assert arrays[0].shape == (4, 50, 1_024)
    assert arrays[0].dtype == np.float16
