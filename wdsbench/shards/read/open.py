"""What a user names as data: a folder with an index, or tar files."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from braceexpand import braceexpand

from wdsbench.errors import ShardError
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.plain import index_tars


def open_index(source: str | Path | Sequence[str | Path]) -> DatasetIndex:
    """Return the index of a data set.

    Args:
        source: A folder with an ``index.json``; a tar file; a pattern of tar files with braces
            (``shards/train-{000000..000007}.tar``) or stars; or a list of tar files.

    Raises:
        ShardError: Nothing is there, or it is damaged; URLs are not read.
    """
    if not isinstance(source, (str, Path)):
        return index_tars([Path(path) for path in source])
    text = str(source)
    if "://" in text or text.startswith("pipe:"):
        raise ShardError(
            "URLs are not read by this version; copy the shards to a folder", shard=text
        )
    if Path(text).is_dir() or not _names_tars(text):
        return DatasetIndex.open(text)
    paths = [Path(match) for pattern in braceexpand(text) for match in _matches(pattern)]
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        raise ShardError("no such tar file", shard=str(missing[0] if missing else text))
    return index_tars(list(dict.fromkeys(paths)))


def _names_tars(text: str) -> bool:
    return text.endswith(".tar") or any(sign in text for sign in "{*?[")


def _matches(pattern: str) -> list[str]:
    """Return the files of one pattern; a name without stars stands for itself, there or not."""
    if any(sign in pattern for sign in "*?["):
        return sorted(glob.glob(pattern))  # noqa: PTH207 - Path.glob refuses absolute patterns
    return [pattern]
