"""Pieces, assignment and order: every sample once, equal shares, a new order every epoch."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import webdataset
from builders import make_dataset

from wdsbench import _core
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_shards
from wdsbench.stream import EpochShuffle, PieceList, SampleRows, cut_pieces, this_consumer
from wdsbench.stream.order import order_rng
from wdsbench.stream.pieces import share_of


def deal(index: DatasetIndex, ranks: int, workers: int, epoch: int = 0) -> list[list[int]]:
    """Return the rows of every reader, as WebDataset's splitters assign them."""
    pieces = cut_pieces(index, None, readers=ranks * workers, seed=1, epoch=epoch, shuffle=True)
    rows = SampleRows(index)
    return [
        list(rows(islice(islice(pieces, rank, None, ranks), worker, None, workers)))
        for rank in range(ranks)
        for worker in range(workers)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_sample_once_in_equal_shares(index: DatasetIndex, ranks: int, workers: int) -> None:
    shares = deal(index, ranks, workers)
    assert sorted(row for share in shares for row in share) == list(range(len(index)))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_more_readers_than_samples(index: DatasetIndex) -> None:
    shares = deal(index, 40, 5)
    assert sorted(row for share in shares for row in share) == list(range(len(index)))


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_is_its_shards(index: DatasetIndex, split: str) -> None:
    pieces = cut_pieces(index, split, readers=2, seed=0, epoch=0, shuffle=True)
    rows = list(SampleRows(index)(pieces))
    place = ("train", "val", "test").index(split)
    assert sorted(rows) == [r for r in range(len(index)) if index.columns["split"][r] == place]


def test_unknown_split(index: DatasetIndex) -> None:
    with pytest.raises(ValueError, match="split 'dev' is not one of train, val, test"):
        cut_pieces(index, "dev", readers=1, seed=0, epoch=0, shuffle=False)


@pytest.mark.parametrize(("samples", "readers"), [(0, 3), (1, 3), (10, 3), (7, 7)])
def test_shares_are_a_partition(samples: int, readers: int) -> None:
    joined = [i for reader in range(readers) for i in share_of(samples, reader, readers)]
    assert joined == list(range(samples))


def pipeline(index: DatasetIndex, *, seed: int, epoch: int, shuffle: int = 20) -> list[int]:
    pieces, buffer = PieceList(index, None, seed=seed), EpochShuffle(shuffle, seed=seed)
    pieces.epoch = buffer.epoch = epoch
    stages = (webdataset.split_by_node, webdataset.split_by_worker, SampleRows(index), buffer)
    return list(webdataset.DataPipeline(pieces, *stages))


def test_order_is_a_function_of_seed_and_epoch(index: DatasetIndex) -> None:
    first = pipeline(index, seed=0, epoch=0)
    assert sorted(first) == list(range(len(index)))
    assert pipeline(index, seed=0, epoch=0) == first
    assert pipeline(index, seed=0, epoch=1) != first
    assert pipeline(index, seed=1, epoch=0) != first


def test_a_buffer_larger_than_the_data_mixes_everything(index: DatasetIndex) -> None:
    rows = pipeline(index, seed=0, epoch=0, shuffle=10_000)
    # Among 101 shuffled samples the first half of the shards is spread over the whole order.
    early = [place for place, row in enumerate(rows) if row < 50]
    assert min(early) < 20
    assert max(early) > 80


def test_stages_can_be_pickled(index: DatasetIndex) -> None:
    pieces = pickle.loads(pickle.dumps(PieceList(index, "train", seed=4)))
    assert list(pieces()) == list(PieceList(index, "train", seed=4)())


def test_stray_worker_variables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER", "0")
    monkeypatch.setenv("NUM_WORKERS", "4")
    with pytest.raises(ValueError, match="WORKER and NUM_WORKERS"):
        this_consumer()


@pytest.mark.parametrize(("rank", "ranks"), [("1", "2"), ("5", "2")])
def test_stray_rank_variables_are_refused(
    monkeypatch: pytest.MonkeyPatch, rank: str, ranks: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with pytest.raises(ValueError, match=f"RANK={rank} and WORLD_SIZE={ranks}, but torch"):
        this_consumer()


def test_ranks_of_torch_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch.distributed as dist

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert (this_consumer().rank, this_consumer().ranks) == (0, 1)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ValueError, match="not initialised with these"):
            this_consumer()
    finally:
        dist.destroy_process_group()


def test_shards_are_kept_open_up_to_a_limit(index: DatasetIndex) -> None:
    shards = len(index.file.shardlist)
    files = open_shards(index, limit=3)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for shard in [0, 0, 1, *range(shards), 0]:
        path = index.shard_path(shard)
        assert files.read(shard, 512, 100) == path.read_bytes()[512:612]
        assert 1 <= files.open_count <= 3
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 3
    del files
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_missing_or_cut_shard_is_named(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=12)
    index = DatasetIndex.open(packed.folder)
    path = index.shard_path(2)
    size = path.stat().st_size
    os.truncate(path, size - 512)
    with pytest.raises(_core.FormatError, match=f"has {size - 512} bytes, the index says {size}"):
        open_shards(index).read(2, 0, 10)
    path.unlink()
    with pytest.raises(_core.FormatError, match="No such file"):
        open_shards(index).read(2, 0, 10)


def test_integers_are_drawn_evenly_and_within_their_ends() -> None:
    rng = order_rng("test", 0)
    counts = Counter(rng.randint(3, 12) for _ in range(50_000))
    assert set(counts) == set(range(3, 13))
    assert min(counts.values()) > 4_700
    assert max(counts.values()) < 5_300
    assert [order_rng("a", 1).randint(0, 9) for _ in range(3)] == [
        order_rng("a", 1).randint(0, 9)
    ] * 3
