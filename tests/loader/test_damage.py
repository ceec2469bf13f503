"""Errors of damaged members name shard, member and byte."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import LAYERS, Packed, make_dataset
from loaded import check_once
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.errors import DecodeError, ShardError, WdsbenchError


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=20)


@pytest.fixture
def copy(original: Packed, tmp_path: Path) -> Packed:
    """Return a copy of the data set, to be damaged."""
    return replace(original, folder=Path(shutil.copytree(original.folder, tmp_path / "shards")))


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


# (damage, member, bytes from its start, new bytes, words)
DAMAGE = [
    ("magic", "hidden.npy", 0, b"XX", "not an npy member"),
    ("dtype", "hidden.npy", 21, b"<f4", "needs .* bytes, the member has"),
    ("grammar", "hidden.npy", 10, b"?", "expected '{'"),
    ("edge index", "edges_index.npy", 128, b"\xff", "edge 255 -> "),
    ("edge weight", "edges_weight.npy", 128, b"\x00\x7c", "is inf; attention weights"),
    ("pointer", "edges_ptr.npy", 128, b"\x01", "pointers start at 0"),
    ("pointer end", "edges_ptr.npy", 128 + 4 * LAYERS, b"\x01\x00\x00\x00", "never fall"),
    ("meta", "meta.json", 0, b"]", "not JSON"),
]


#: Damage that a worker meets in `make test`.
OF_WORKERS = ("grammar", "pointer", "meta")


@pytest.mark.parametrize(
    ("member", "at", "data", "words", "workers"),
    [
        pytest.param(
            *row,
            workers,
            marks=FULL_ONLY if workers and name not in OF_WORKERS else (),
            id=f"{name}-{workers}",
        )
        for name, *row in DAMAGE
        for workers in (0, 1)
    ],
)
def test_damage_names_shard_member_and_byte(
    copy: Packed, member: str, at: int, data: bytes, words: str, workers: int
) -> None:
    loader = TraceLoader(
        copy.folder, split=None, layout="graph", fields=("hidden", "meta"), num_workers=workers
    )
    index, row = loader.index, 7
    shard = index.shard_path(int(index.columns["shard"][row]))
    offset = int(index.member(member, "offset")[row])
    patch(shard, offset + at, data)
    with pytest.raises(WdsbenchError, match=words) as caught:
        list(loader)
    assert str(shard) in str(caught.value)
    assert index.member_name(row, member) in str(caught.value)
    assert isinstance(caught.value, DecodeError)
    assert "Traceback" not in str(caught.value)
    assert caught.value.member == index.member_name(row, member)
    if member != "meta.json":
        size = int(index.member(member, "size")[row])
        assert caught.value.offset_bytes is not None
        assert offset <= caught.value.offset_bytes <= offset + size


def test_a_flipped_payload_bit_is_found_by_hash_alone(copy: Packed) -> None:
    options: dict[str, Any] = {"split": None, "tokens": "all", "layout": "pad"}
    loader = TraceLoader(copy.folder, verify="hash", **options)
    check_once(loader, copy)
    index, row = loader.index, 7
    shard = index.shard_path(int(index.columns["shard"][row]))
    patch(shard, int(index.member("hidden.npy", "offset")[row]) + 200, b"\x55")
    assert len(list(TraceLoader(copy.folder, **options))) == len(loader)
    with pytest.raises(ShardError, match="was written to since it was opened"):
        list(loader)
    with pytest.raises(DecodeError, match="XXH3 differs") as caught:
        list(TraceLoader(copy.folder, verify="hash", **options))
    assert caught.value.member == index.member_name(row, "hidden.npy")


def test_a_shard_cut_under_an_open_reader(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=40, shard_mb=10)
    loader = TraceLoader(packed.folder, split="train", batch_size=4, shuffle=0)
    batches = iter(loader)
    next(batches)
    shard = loader.index.shard_path(0)
    size = shard.stat().st_size
    os.truncate(shard, size // 3)
    with pytest.raises(ShardError, match=r"bytes of the member are missing|was cut") as caught:
        list(batches)
    assert caught.value.shard == str(shard)
    assert caught.value.offset_bytes is not None
    assert size // 3 <= caught.value.offset_bytes < size
