"""Reading ahead is a hint: it changes no result and ends with its owner."""

from __future__ import annotations

import gc
import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest
from files.made_shards import SIZE, content, make_shards, open_paths
from scripts import open_files

from wdsbench import _core

NONSENSE = [
    (0, 0, 0),
    (0, 0, SIZE),
    (0, SIZE, 1),
    (0, SIZE - 1, 100),
    (0, 2**63 - 1, 1),
    (0, 2**64 - 1, 2**64 - 1),
    (0, 0, 2**64 - 1),
    (1, 0, 10),
    (7, 0, 10),
    (2**64 - 1, 0, 10),
]


def test_nonsense_is_only_a_hint(tmp_path: Path) -> None:
    (path,) = make_shards(tmp_path)
    sizes = [SIZE, 10]
    names = [os.fsencode(path), os.fsencode(tmp_path / "none")]
    for order in range(len(NONSENSE)):
        files = _core.ShardFiles(names, sizes, limit=1)
        ahead = _core.ReadAhead(files)
        for request in NONSENSE[order:] + NONSENSE[:order]:
            ahead.request(*request)
        assert files.read(0, 10, 10) == content(0)[10:20]
        if order % 2:
            ahead.clear()
        if order % 3:
            del files  # the hint still holds it
    with pytest.raises(TypeError):
        _core.ReadAhead(_core.ShardFiles([], [], limit=1)).request(0, -1, 1)


def test_reading_ahead_ends_in_any_order(tmp_path: Path) -> None:
    paths = make_shards(tmp_path, 4)
    before_files = open_files()  # collects garbage of other tests, which may own threads
    before_threads = threads_here()
    for order in itertools.permutations(range(3)):
        files = open_paths(paths, limit=1)
        items: list[Any] = [files, _core.ReadAhead(files), _core.ReadAhead(files)]
        del files
        for shard in range(4):
            items[1].request(shard, 0, SIZE)
            items[2].request(3 - shard, 0, SIZE)
        for place in order:
            items[place] = None
    assert open_files(collect=False) == before_files
    assert threads_here() == before_threads


def test_without_requests_there_is_no_thread(tmp_path: Path) -> None:
    gc.collect()
    before = threads_here()
    ahead = _core.ReadAhead(open_paths(make_shards(tmp_path)))
    ahead.clear()
    ahead.request(0, 0, 0)
    assert threads_here() == before
    ahead.request(0, 0, 1)
    assert threads_here() == before + 1
    del ahead
    assert threads_here() == before


def threads_here() -> int:
    """Return the threads of this process; those that have ended count for a moment."""
    tasks = Path("/proc/self/task")
    counts = []
    for _ in range(20):
        counts.append(len(list(tasks.iterdir())))
        time.sleep(0.001)
    return min(counts)


def test_cut_under_the_reading_ahead(tmp_path: Path) -> None:
    paths = make_shards(tmp_path, 3)
    files = open_paths(paths, limit=3)
    ahead = _core.ReadAhead(files)
    for shard in range(3):
        ahead.request(shard, 0, SIZE)
        os.truncate(paths[shard], shard)
        ahead.request(shard, 0, SIZE)
    for shard in range(3):
        with pytest.raises(_core.FormatError):
            files.read(shard, 0, SIZE)
