"""Files that appear whole or not at all: written beside their place, flushed, renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def temp_path(path: Path) -> Path:
    """Return where a file is written until it is whole: beside ``path``, hidden from globs."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes ``path`` when the block ends, and vanishes when it raises.

    Afterwards there is the old file or the new one, also after a power cut.
    """
    temporary = temp_path(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk: a rename lives in the folder, not in the file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
