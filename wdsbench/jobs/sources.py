"""Data named by a user: a packed data set, tar files, or raw trace files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wdsbench.shards.read.index import DatasetIndex


def names_shards(sources: Sequence[str]) -> bool:
    """Return True for a data set or tar files, False for raw traces.

    A folder is a data set if it has an index, tar files, or the mark of an unfinished data set.

    Raises:
        ValueError: The sources are of both kinds, or several with a data set among them.
    """
    kinds = [source.endswith(".tar") or _is_dataset(source) for source in sources]
    if any(kinds) and not all(kinds):
        raise ValueError(f"{', '.join(sources)}: pass shards or raw traces, not both.")
    if all(kinds) and len(kinds) > 1 and any(map(_is_dataset, sources)):
        raise ValueError(f"{', '.join(sources)}: pass one data set at a time.")
    return all(kinds)


def open_sources(sources: Sequence[str]) -> DatasetIndex:
    """Return the index of one data set or of tar files.

    Raises:
        ShardError: It is missing or damaged.
    """
    from wdsbench.shards.read.open import open_index

    return open_index(sources[0] if len(sources) == 1 else sources)


def _is_dataset(source: str) -> bool:
    folder = Path(source)
    if not folder.is_dir():
        return False
    names = ("index.json", ".wdsbench-unfinished")
    return any((folder / name).exists() for name in names) or any(folder.glob("*.tar"))
