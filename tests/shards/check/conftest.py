"""A data set with every kind of attention, in several shards."""

from __future__ import annotations

import pytest
from builders import Packed, make_dataset

from wdsbench.pack import PackOptions


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    options = PackOptions(attention=("edges", "heads", "sketch", "full"), threads=1)
    return make_dataset(tmp_path_factory.mktemp("data"), traces=16, shard_mb=0.05, options=options)
