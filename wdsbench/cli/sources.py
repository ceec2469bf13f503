"""What a user names as data: a packed data set, tar files, or raw trace files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def names_shards(sources: Sequence[str]) -> bool:
    """Return whether the sources are a data set or tar files, and not raw traces.

    A folder is a data set if it has an index or tar files; and if pack was killed in it.

    Raises:
        ValueError: Both, or a data set beside others.
    """
    kinds = [_is_folder_of_shards(source) or _names_tars(source) for source in sources]
    if any(kinds) and not all(kinds):
        raise ValueError(f"{', '.join(sources)}: name shards or raw traces, not both")
    if all(kinds) and len(kinds) > 1 and any(map(_is_folder_of_shards, sources)):
        raise ValueError(f"{', '.join(sources)}: name one data set at a time")
    return all(kinds)


def _is_folder_of_shards(source: str) -> bool:
    folder = Path(source)
    if not folder.is_dir():
        return False
    names = ("index.json", ".wdsbench-unfinished")
    return any((folder / name).exists() for name in names) or any(folder.glob("*.tar"))


def _names_tars(source: str) -> bool:
    return source.endswith(".tar")  # braces and stars stand before it
