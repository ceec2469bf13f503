"""The data set of the tests of this folder, and a copy of it that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders import Packed, make_dataset


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture
def copy(packed: Packed, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed.folder, tmp_path / "shards"))
