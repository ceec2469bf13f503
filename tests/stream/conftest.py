"""The data set of the tests of this folder."""

from __future__ import annotations

import pytest
from builders import Packed, make_dataset

from wdsbench.shards.read.index import DatasetIndex


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=101)


@pytest.fixture(scope="module")
def index(packed: Packed) -> DatasetIndex:
    return DatasetIndex.open(packed.folder)
