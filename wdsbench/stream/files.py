"""Open the shards of a data set for the C++ readers."""

from __future__ import annotations

import os
import resource

from wdsbench import _core
from wdsbench.shards.read.index import DatasetIndex

#: Shards kept open; a reader of shuffled shards uses a few at a time.
MOST_OPEN = 512


def open_shards(
    index: DatasetIndex, *, access: str = "map", limit: int | None = None
) -> _core.ShardFiles:
    """Return the shards of ``index``; each is opened when it is first read.

    ``access`` is ``"map"``, ``"sparse"`` (little of each member is read) or ``"pread"``; ``limit``
    is the number of shards kept open (None: an eighth of the files the process can open).
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    shards = index.file.shardlist
    return _core.ShardFiles(
        [os.fsencode(index.shard_path(number)) for number in range(len(shards))],
        [shard.filesize for shard in shards],
        limit=limit or max(1, min(allowed // 8, MOST_OPEN)),
        access=access,
    )
