"""Open a data set (a folder with an index, or tar files), and its shards for the C++ readers."""

from __future__ import annotations

import glob
import os
import resource
from collections.abc import Sequence
from pathlib import Path

from braceexpand import braceexpand

from wdsbench import _core
from wdsbench.errors import ShardError
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.plain import index_tars

_WILDCARDS = "*?["
#: Shards kept open; a reader of shuffled shards uses a few at a time.
_OPEN_SHARDS = 512


def open_index(source: str | Path | Sequence[str | Path]) -> DatasetIndex:
    """Return the index of a data set.

    ``source`` is a folder with an ``index.json``; a tar file; a pattern of tar files with braces
    (``shards/train-{000000..000007}.tar``) or wildcards; or a list of tar files.

    Raises:
        ShardError: It does not exist, is damaged, or is a URL.
    """
    if not isinstance(source, (str, Path)):
        return index_tars([Path(path) for path in source])
    text = str(source)
    if "://" in text or text.startswith("pipe:"):
        raise ShardError("URLs are not supported; copy the shards to a folder", shard=text)
    if Path(text).is_dir() or not (text.endswith(".tar") or any(c in text for c in "{*?[")):
        return DatasetIndex.open(text)
    return index_tars(tar_paths([text]))


def tar_paths(patterns: Sequence[str]) -> list[Path]:
    """Return the files that names and patterns match, each once; raise ShardError for no match."""
    paths: list[Path] = []
    for pattern in patterns:
        for name in braceexpand(pattern):
            matches = [name]
            if any(c in name for c in _WILDCARDS) and not Path(name).exists():
                matches = sorted(glob.glob(name))  # noqa: PTH207 - Path.glob: no absolute patterns
            missing = [match for match in matches if not Path(match).is_file()]
            if missing or not matches:
                raise ShardError("no such tar file", shard=missing[0] if missing else name)
            paths += map(Path, matches)
    return list(dict.fromkeys(paths))


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
        limit=limit or max(1, min(allowed // 8, _OPEN_SHARDS)),
        access=access,
    )
