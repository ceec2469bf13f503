"""Fixtures of loaders with worker processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from builders import Packed, make_dataset
from loader.teams import none_left


@pytest.fixture(scope="package")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="package")
def large(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Samples of 128 kB as float32, large enough for slabs."""
    folder = tmp_path_factory.mktemp("large")
    return make_dataset(folder, traces=80, layers=2, features=1024, tokens=16, shard_mb=1)


@pytest.fixture
def no_workers_left() -> Iterator[None]:
    """No worker is alive before or after the test."""
    assert none_left()
    yield
    assert none_left()
