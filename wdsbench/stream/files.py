"""Open shards of a data set, as the C++ readers want them."""

from __future__ import annotations

import os
import resource

from wdsbench import _core
from wdsbench.shards.read.index import DatasetIndex

#: Shards kept open; a reader of shuffled shards is at home in a few at a time.
MOST_OPEN = 512


def open_shards(
    index: DatasetIndex, *, access: str = "map", limit: int | None = None
) -> _core.ShardFiles:
    """Return the shards of ``index``, to be opened when first read.

    Args:
        index: Of the data set.
        access: ``"map"``; ``"sparse"``, where little of every member is wanted; ``"pread"``.
        limit: Shards kept open; None: an eighth of the files the process may open, so that several
            loaders fit beside each other.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    shards = index.file.shardlist
    return _core.ShardFiles(
        [os.fsencode(index.shard_path(number)) for number in range(len(shards))],
        [shard.filesize for shard in shards],
        limit=limit or max(1, min(allowed // 8, MOST_OPEN)),
        access=access,
    )
