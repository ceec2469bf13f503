"""Shards that are cut, overwritten or replaced while loaders read them, at random moments.

Every epoch gives all samples with the right values or ends in an error that names the shard; what
was handed out before is right too. In-place changes come when every shard is open: what is written
to a shard before it is opened cannot be told from what was packed, except by its hash.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Packed, make_dataset
from loaded import check_states
from trials import FULL_ONLY, trials

from wdsbench import ShardError, TraceDataset, TraceLoader
from wdsbench.loader.readers import InProcessReader

TRACES = 40

#: For what replaces a byte: as a float16 it is finite and not what was packed.
GARBAGE = b"\x3c\x3c"


@dataclass
class Shard:
    """A shard, its bytes as they were packed, and a generator of bad luck."""

    path: Path
    data: bytes
    rng: random.Random

    def place(self) -> int:
        return self.rng.randrange(len(self.data))

    def write(self, offset: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)


def cut(shard: Shard) -> None:
    os.truncate(shard.path, shard.place())


def cut_and_restore(shard: Shard) -> None:
    at = shard.place()
    os.truncate(shard.path, at)
    time.sleep(shard.rng.choice([0, 0, 1e-4, 1e-3]))
    shard.write(at, shard.data[at:])


def overwrite(shard: Shard) -> None:
    at = shard.place()
    size = min(shard.rng.choice([2, 4096, 300_000]), len(shard.data) - at)
    shard.write(at, (GARBAGE * size)[:size])


def overwrite_and_restore(shard: Shard) -> None:
    at = shard.place()
    size = min(shard.rng.choice([2, 4096, 300_000]), len(shard.data) - at)
    shard.write(at, (GARBAGE * size)[:size])
    time.sleep(shard.rng.choice([0, 0, 1e-4, 1e-3]))
    shard.write(at, shard.data[at : at + size])


def empty_and_write_anew(shard: Shard) -> None:
    shard.path.write_bytes(shard.data)


def rename_shorter(shard: Shard) -> None:
    other = shard.path.with_suffix(".other")
    other.write_bytes(shard.data[: shard.place()])
    other.replace(shard.path)


def rename_same(shard: Shard) -> None:
    other = shard.path.with_suffix(".other")
    other.write_bytes(shard.data)
    other.replace(shard.path)


def unlink(shard: Shard) -> None:
    shard.path.unlink()


HARMS = [
    cut,
    cut_and_restore,
    overwrite,
    overwrite_and_restore,
    empty_and_write_anew,
    rename_shorter,
    rename_same,
    unlink,
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("data")
    packed = make_dataset(folder, traces=TRACES, layers=3, features=256, tokens=40, shard_mb=0.5)
    for path in packed.folder.glob("*.tar"):
        os.utime(path, ns=(1, 1))
    return packed


def options(**more: Any) -> dict[str, Any]:
    return {"split": None, "tokens": "all", "layout": "stack", "batch_size": 4, **more}


def read_all(loader: TraceLoader, packed: Packed) -> None:
    """Read an epoch; every batch is compared when it is handed out."""
    samples = 0
    for batch in loader:
        check_states(batch, packed, "all")
        samples += len(batch)
    assert samples == TRACES


def trial(
    packed: Packed, folder: Path, loader: TraceLoader, harm: Callable[[Shard], None], seed: int
) -> bool:
    """Read while a shard comes to harm; return whether it was noticed."""
    rng = random.Random(seed)
    path = rng.choice(sorted(folder.glob("*.tar")))
    shard = Shard(path, path.read_bytes(), rng)
    started = time.perf_counter()
    read_all(loader, packed)
    moment = rng.random() * (time.perf_counter() - started)

    def work() -> None:
        time.sleep(moment)
        harm(shard)

    thread = threading.Thread(target=work)
    thread.start()
    error = error_of(lambda: read_until_done(loader, packed, thread))
    thread.join()
    if error is None:
        return False
    assert error.shard == str(path)
    assert str(path) in str(error)
    assert error.offset_bytes is not None
    assert 0 <= error.offset_bytes <= len(shard.data)
    assert error.member is None or error.member.endswith(".npy")
    return True


def read_until_done(loader: TraceLoader, packed: Packed, thread: threading.Thread) -> None:
    """Read epochs while ``thread`` does its harm, and two after it: most of the first may have been
    read by workers before the harm was done.
    """
    while thread.is_alive():
        read_all(loader, packed)
    for _ in range(2):
        read_all(loader, packed)


def error_of(work: Callable[[], None]) -> ShardError | None:
    """Return the error that ``work`` ends in."""
    try:
        work()
    except ShardError as error:
        return error
    return None


@pytest.mark.trials
@pytest.mark.parametrize(
    ("harm", "workers", "threads", "count"),
    [(harm, 0, 2, trials(1, 8)) for harm in HARMS]
    + [(harm, 2, None, trials(1, 4)) for harm in (cut_and_restore, rename_shorter)]
    + [
        pytest.param(harm, 2, None, 4, marks=FULL_ONLY)
        for harm in HARMS
        if harm not in (cut_and_restore, rename_shorter)
    ]
    + [pytest.param(harm, 0, 1, 8, marks=FULL_ONLY) for harm in HARMS],
)
def test_all_samples_or_an_error_with_its_place(
    packed: Packed,
    tmp_path: Path,
    harm: Callable[[Shard], None],
    workers: int,
    threads: int | None,
    count: int,
) -> None:
    noticed = 0
    for seed in range(count):
        folder = tmp_path / str(seed)
        shutil.copytree(packed.folder, folder)
        # In this order every reader has opened all it will read in the first epoch.
        more = {"shuffle": 0, "num_workers": workers, "threads": threads}
        noticed += trial(packed, folder, TraceLoader(folder, **options(**more)), harm, seed)
        shutil.rmtree(folder)
    if harm in (rename_shorter, rename_same, unlink):
        assert noticed == 0  # the files that were opened are as they were
    else:
        assert noticed == count


@pytest.mark.trials
@pytest.mark.parametrize(
    "harm",
    [cut, unlink, *(pytest.param(harm, marks=FULL_ONLY) for harm in (rename_shorter, rename_same))],
)
@pytest.mark.parametrize(("workers", "threads"), [pytest.param(0, 2, marks=FULL_ONLY), (2, None)])
def test_shards_that_are_not_open_yet(
    packed: Packed, tmp_path: Path, harm: Callable[[Shard], None], workers: int, threads: int | None
) -> None:
    for seed in range(trials(1, 6)):
        folder = tmp_path / str(seed)
        shutil.copytree(packed.folder, folder)
        rng = random.Random(seed)
        path = rng.choice(sorted(folder.glob("*.tar")))
        loader = TraceLoader(folder, **options(num_workers=workers, threads=threads))
        shard = Shard(path, path.read_bytes(), rng)
        thread = threading.Timer(rng.random() * 0.02, harm, [shard])
        thread.start()
        error = error_of(lambda: read_until_done(loader, packed, thread))  # noqa: B023
        thread.join()
        assert error is None or error.shard == str(path)
        if harm is not rename_same:
            with pytest.raises(ShardError) as caught:
                read_all(TraceLoader(folder, **options(num_workers=workers)), packed)
            assert caught.value.shard == str(path)
        shutil.rmtree(folder)


@pytest.mark.trials
@pytest.mark.parametrize(("workers", "threads"), [(0, 2), pytest.param(2, None, marks=FULL_ONLY)])
def test_hashes_find_what_was_overwritten_before_it_was_opened(
    packed: Packed, tmp_path: Path, workers: int, threads: int | None
) -> None:
    for seed in range(trials(2, 8)):
        folder = tmp_path / str(seed)
        shutil.copytree(packed.folder, folder)
        rng = random.Random(seed)
        path = rng.choice(sorted(folder.glob("*.tar")))
        shard = Shard(path, path.read_bytes(), rng)
        more = {"num_workers": workers, "threads": threads, "verify": "hash"}
        loader = TraceLoader(folder, **options(**more))
        harm = rng.choice([overwrite, overwrite_and_restore, empty_and_write_anew])
        thread = threading.Timer(rng.random() * 0.02, harm, [shard])
        thread.start()
        error = error_of(lambda: read_until_done(loader, packed, thread))  # noqa: B023
        thread.join()
        assert error is None or error.shard == str(path)
        shutil.rmtree(folder)


@pytest.mark.trials
@pytest.mark.parametrize(
    ("layout", "harm"),
    [
        ("graph", cut),
        ("jagged", overwrite),
        *(pytest.param("graph", harm, marks=FULL_ONLY) for harm in (cut_and_restore, overwrite)),
        *(pytest.param("jagged", harm, marks=FULL_ONLY) for harm in (cut, cut_and_restore)),
    ],
)
def test_other_layouts(packed: Packed, tmp_path: Path, layout: str, harm: Any) -> None:
    for seed in range(trials(1, 6)):
        folder = tmp_path / str(seed)
        shutil.copytree(packed.folder, folder)
        loader = TraceLoader(folder, **options(shuffle=0, layout=layout, threads=2))
        assert trial(packed, folder, loader, harm, seed)
        shutil.rmtree(folder)


@pytest.mark.trials
@pytest.mark.parametrize("harm", [cut, cut_and_restore, overwrite, overwrite_and_restore])
def test_single_samples(packed: Packed, tmp_path: Path, harm: Callable[[Shard], None]) -> None:
    for seed in range(trials(1, 5)):
        folder = tmp_path / str(seed)
        shutil.copytree(packed.folder, folder)
        rng = random.Random(seed)
        path = rng.choice(sorted(folder.glob("*.tar")))
        dataset = TraceDataset(folder, split=None, tokens="all", shuffle=0)
        for _ in dataset:
            pass
        shard = Shard(path, path.read_bytes(), rng)
        thread = threading.Timer(rng.random() * 0.02, harm, [shard])
        thread.start()
        error = error_of(lambda: read_samples(dataset, packed, thread))  # noqa: B023
        thread.join()
        assert error is not None
        assert error.shard == str(path)
        shutil.rmtree(folder)


def read_samples(dataset: TraceDataset, packed: Packed, thread: threading.Thread) -> None:
    """Read epochs of single samples while ``thread`` does its harm, and one after it."""
    going_on = True
    while going_on:
        going_on = thread.is_alive()
        seen = 0
        for sample in dataset:
            expected = packed.hidden(sample["question_id"])
            np.testing.assert_array_equal(sample["hidden"].numpy(), expected)
            seen += 1
        assert seen == TRACES


def test_an_error_gives_every_slab_back(packed: Packed, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(packed.folder, folder)
    loader = TraceLoader(folder, **options(shuffle=0))
    read_all(loader, packed)
    path = loader.index.shard_path(0)
    data = path.read_bytes()
    for _ in range(20):
        os.truncate(path, len(data) // 2)
        with pytest.raises(ShardError):
            read_all(loader, packed)
    other = path.with_suffix(".other")
    other.write_bytes(data)
    other.replace(path)
    fresh = TraceLoader(folder, **options(shuffle=0))
    read_all(fresh, packed)
    assert fresh.stats.copied_batches == 0
    assert isinstance(loader._reader, InProcessReader)
    states = loader._reader._pools[0]
    assert states._count
    assert len(states._free) == states._count
