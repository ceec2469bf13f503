"""Open shards: the same bytes by every access; cut or written to, a typed error and no crash."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files.made_shards import ACCESS, PAGE, SIZE, content, make_shards, open_paths, overwrite
from scripts import open_files

from wdsbench import _core


@pytest.mark.parametrize("access", ACCESS)
def test_the_same_bytes(tmp_path: Path, access: str) -> None:
    paths = make_shards(tmp_path, 2)
    files = open_paths(paths, access=access)
    rng = np.random.default_rng(0)
    ends = [0, 1, 63, 64, PAGE - 1, PAGE, 256 * 1024, 256 * 1024 + 1, SIZE - 1, SIZE]
    ranges = list(itertools.combinations_with_replacement(ends, 2))
    ranges += [tuple(sorted(pair)) for pair in rng.integers(0, SIZE, (50, 2)).tolist()]
    for shard in (0, 1):
        expected = content(shard)
        for first, last in ranges:
            assert files.read(shard, first, last - first) == expected[first:last]


@pytest.mark.parametrize("access", ACCESS)
def test_an_empty_shard(tmp_path: Path, access: str) -> None:
    files = open_paths(make_shards(tmp_path, size=0), access=access)
    assert files.read(0, 0, 0) == b""
    with pytest.raises(_core.FormatError, match="1 bytes of the member are missing"):
        files.read(0, 0, 1)


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize(
    ("offset", "size", "end", "missing"),
    [
        (0, SIZE + 1, SIZE, 1),
        (SIZE - 3, 10, SIZE, 7),
        (SIZE, 1, SIZE, 1),
        (SIZE + 5, 2, SIZE + 5, 2),
        (2**63, 2**62, 2**63, 2**62),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1),
        (1, 2**64 - 1, SIZE, 2**64 - SIZE),
    ],
)
def test_reading_past_the_end(
    tmp_path: Path, access: str, offset: int, size: int, end: int, missing: int
) -> None:
    files = open_paths(make_shards(tmp_path), access=access)
    with pytest.raises(_core.FormatError, match=f"{missing} bytes of the member") as caught:
        files.read(0, offset, size)
    assert (caught.value.kind, caught.value.offset_bytes) == ("truncated", end)


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("cut", [0, 1, PAGE, PAGE + 1, SIZE // 2, SIZE // PAGE * PAGE, SIZE - 1])
def test_a_shard_cut_after_it_was_opened(tmp_path: Path, access: str, cut: int) -> None:
    (path,) = make_shards(tmp_path)
    files = open_paths([path], access=access)
    assert files.read(0, SIZE - 1, 1) == content(0)[-1:]
    os.truncate(path, cut)
    # Even what is still there is not vouched for.
    for offset, size in [(0, SIZE), (cut, SIZE - cut), (SIZE - 1, 1), (0, 1)]:
        with pytest.raises(_core.FormatError) as caught:
            files.read(0, offset, size)
        assert caught.value.kind == "truncated"
        assert cut <= caught.value.offset_bytes < SIZE
    assert files.open_count == 1


@pytest.mark.parametrize("access", ACCESS)
def test_the_offset_is_where_the_bytes_end(tmp_path: Path, access: str) -> None:
    (path,) = make_shards(tmp_path)
    files = open_paths([path], access=access)
    files.read(0, 0, 1)
    os.truncate(path, 5 * PAGE)
    with pytest.raises(_core.FormatError, match=f"{SIZE - 5 * PAGE} bytes") as caught:
        files.read(0, PAGE, SIZE - PAGE)
    assert caught.value.offset_bytes == 5 * PAGE


@pytest.mark.parametrize("access", ACCESS)
def test_a_shard_that_has_grown(tmp_path: Path, access: str) -> None:
    (path,) = make_shards(tmp_path)
    files = open_paths([path], access=access)
    files.read(0, 0, 1)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(_core.FormatError, match="was cut or replaced while it was read") as caught:
        files.read(0, 0, 1)
    assert (caught.value.kind, caught.value.offset_bytes) == ("truncated", SIZE)


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("same", [False, True])
def test_a_shard_that_was_written_to(tmp_path: Path, access: str, same: bool) -> None:
    (path,) = make_shards(tmp_path)
    os.utime(path, ns=(1, 1))
    files = open_paths([path], access=access)
    files.read(0, 0, 1)
    overwrite(path, 500, content(0)[500:510] if same else b"0123456789")
    with pytest.raises(_core.FormatError, match="was written to since it was opened") as caught:
        files.read(0, 0, 10)
    assert caught.value.kind == "io"


@pytest.mark.parametrize("access", ACCESS)
def test_cut_and_restored_is_not_as_it_was(tmp_path: Path, access: str) -> None:
    (path,) = make_shards(tmp_path)
    os.utime(path, ns=(1, 1))
    files = open_paths([path], access=access)
    files.read(0, 0, SIZE)
    os.truncate(path, PAGE)
    os.truncate(path, SIZE)  # zeros now
    with pytest.raises(_core.FormatError, match="was written to"):
        files.read(0, 0, SIZE)


@pytest.mark.parametrize("access", ACCESS)
def test_a_file_renamed_over_it_is_another_file(tmp_path: Path, access: str) -> None:
    paths = make_shards(tmp_path, 3)
    files = open_paths(paths[:2], limit=1, access=access)
    files.read(0, 0, 1)
    paths[2].replace(paths[0])
    assert files.read(0, 100, 100) == content(0)[100:200]  # the one it opened
    files.read(1, 0, 1)  # closes it
    assert files.read(0, 100, 100) == content(2)[100:200]


@pytest.mark.parametrize("access", ACCESS)
def test_an_unlinked_file_lives_while_it_is_open(tmp_path: Path, access: str) -> None:
    (path,) = make_shards(tmp_path)
    files = open_paths([path], access=access)
    files.read(0, 0, 1)
    path.unlink()
    assert files.read(0, 0, SIZE) == content(0)


@pytest.mark.parametrize("access", ACCESS)
def test_a_missing_shard(tmp_path: Path, access: str) -> None:
    path = os.fsencode(tmp_path / "none.tar")
    files = _core.ShardFiles([path], [10], limit=1, access=access)
    for _ in range(3):
        with pytest.raises(_core.FormatError, match="cannot open: No such file") as caught:
            files.read(0, 0, 1)
        assert (caught.value.kind, caught.value.offset_bytes) == ("io", 0)
    assert files.open_count == 0
    (tmp_path / "none.tar").write_bytes(bytes(10))
    assert files.read(0, 0, 10) == bytes(10)


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("there", [SIZE - 1, SIZE + 1, 0])
def test_a_shard_of_another_size(tmp_path: Path, access: str, there: int) -> None:
    (path,) = make_shards(tmp_path)
    files = open_paths([path], access=access)
    os.truncate(path, there)
    before = open_files()
    with pytest.raises(_core.FormatError, match=f"has {there} bytes, the index says {SIZE}") as got:
        files.read(0, 0, 1)
    assert (got.value.kind, got.value.offset_bytes) == ("truncated", min(there, SIZE))
    assert open_files(collect=False) == before


def test_a_folder_is_no_shard(tmp_path: Path) -> None:
    size = tmp_path.stat().st_size
    for access in ACCESS:
        files = _core.ShardFiles([os.fsencode(tmp_path)], [size], limit=1, access=access)
        with pytest.raises(_core.FormatError) as caught:
            files.read(0, 0, 1)
        assert caught.value.kind in ("io", "truncated")


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_longest_unused_is_closed(tmp_path: Path, access: str, limit: int) -> None:
    paths = make_shards(tmp_path, 6, 1000)
    before = open_files()
    files = open_paths(paths, limit=limit, access=access)
    assert files.open_count == 0
    for step, shard in enumerate([0, 1, 2, 0, 3, 0, 4, 0, 5], start=1):
        assert files.read(shard, 10, 20) == content(shard, 1000)[10:30]
        assert files.open_count <= min(step, max(limit, 1))
        assert open_files(collect=False) == before + files.open_count
    if limit == 3:  # 0 was always in use, 4 and 5 are the last
        for shard in (1, 2, 3):
            paths[shard].unlink()
        for shard in (0, 4, 5):
            overwrite(paths[shard], 0, b"x")
            with pytest.raises(_core.FormatError, match="was written to"):
                files.read(shard, 0, 1)
    del files
    assert open_files(collect=False) == before


def test_a_map_that_is_closed_is_unmapped(tmp_path: Path) -> None:
    paths = make_shards(tmp_path, 4)
    files = open_paths(paths, limit=2)
    for shard in range(4):
        files.read(shard, 0, 1)
    maps = Path("/proc/self/maps").read_text()
    assert [str(path) in maps for path in paths] == [False, False, True, True]
    del files
    maps = Path("/proc/self/maps").read_text()
    assert not any(str(path) in maps for path in paths)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([b"a"], [1, 2]), ValueError, "paths and sizes differ in number"),
        (([b"a"], [-1]), TypeError, "incompatible"),
        ((["a"], [1]), TypeError, "incompatible"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        _core.ShardFiles(*arguments, limit=1)


def test_wrong_access() -> None:
    with pytest.raises(ValueError, match="'mmap' is not one of 'map', 'sparse', 'pread'"):
        _core.ShardFiles([], [], limit=1, access="mmap")


@pytest.mark.parametrize("shard", [1, 2**63])
def test_no_such_shard(tmp_path: Path, shard: int) -> None:
    files = open_paths(make_shards(tmp_path, size=10))
    with pytest.raises(ValueError, match=f"shard {shard} is not one of 1"):
        files.read(shard, 0, 1)


@pytest.mark.parametrize("access", ACCESS)
def test_threads_share_one_place(tmp_path: Path, access: str) -> None:
    paths = make_shards(tmp_path, 5, 20_000)
    expected = [content(shard, 20_000) for shard in range(5)]
    files = open_paths(paths, limit=1, access=access)
    before = open_files()
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for shard, first in rng.integers(0, (5, 10_000), (400, 2)).tolist():
                if files.read(shard, first, 9_000) != expected[shard][first : first + 9_000]:
                    wrong.append((shard, first))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert files.open_count == 1
    assert open_files(collect=False) == before + 1
