"""Open shards: one descriptor each, opened when first needed, the longest unused closed beyond a
limit.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import OrderedDict

from wdsbench.errors import ShardError
from wdsbench.shards.index import DatasetIndex

MOST_OPEN = 512


class ShardFiles:
    """Descriptors of a data set's shards.

    A shard whose size is not what the index says is refused when it is opened; one that is cut
    later is noticed by the read itself. Descriptors belong to one process: a copy in another
    process starts empty.
    """

    def __init__(self, index: DatasetIndex, *, limit: int | None = None) -> None:
        """Prepare to open shards of ``index``.

        Args:
            index: Of the data set.
            limit: Descriptors kept open; None: an eighth of what the process may have, so that
                several loaders fit beside each other.
        """
        self._index = index
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._limit = limit or max(1, min(allowed // 8, MOST_OPEN))
        self._open: OrderedDict[int, int] = OrderedDict()
        self._pid = os.getpid()

    def descriptors(self, shards: list[int]) -> list[int]:
        """Return an open descriptor for each entry; valid until the next call.

        Raises:
            ShardError: A shard is missing, unreadable or of the wrong size.
        """
        if self._pid != os.getpid():
            self._open, self._pid = OrderedDict(), os.getpid()
        wanted = set(shards)
        for shard in wanted:
            if shard in self._open:
                self._open.move_to_end(shard)
        for shard in wanted - self._open.keys():
            while len(self._open) >= self._limit and next(iter(self._open)) not in wanted:
                os.close(self._open.popitem(last=False)[1])
            self._open[shard] = self._open_shard(shard)
        while len(self._open) > max(self._limit, len(wanted)):
            os.close(self._open.popitem(last=False)[1])
        return [self._open[shard] for shard in shards]

    def close(self) -> None:
        """Close every descriptor of this process."""
        if self._pid == os.getpid():
            for descriptor in self._open.values():
                os.close(descriptor)
        self._open.clear()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[ShardFiles], tuple[DatasetIndex]]:
        return ShardFiles, (self._index,)

    def _open_shard(self, shard: int) -> int:
        path = self._index.shard_path(shard)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            remedy = "; raise it with ulimit -n" if error.errno == errno.EMFILE else ""
            raise ShardError(f"cannot open: {error.strerror}{remedy}", shard=str(path)) from error
        size, expected = os.fstat(descriptor).st_size, self._index.file.shardlist[shard].filesize
        if size != expected:
            os.close(descriptor)
            raise ShardError(
                f"has {size} bytes, the index says {expected}; the shard was cut or replaced: pack "
                f"it again",
                shard=str(path),
                offset_bytes=min(size, expected),
            )
        return descriptor
