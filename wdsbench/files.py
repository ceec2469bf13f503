"""Files that are complete or absent: written under another name, flushed, renamed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


def temp_path(path: Path) -> Path:
    """Return the path of a file while it is written: in the same folder, hidden from globs."""
    return path.with_name(f".{path.name}.tmp")


@contextlib.contextmanager
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


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically; its folder is created if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON with sorted keys; NaN and infinities are refused (not JSON)."""
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    write_whole(path, (text + "\n").encode())


def remove_versions(folder: Path, pattern: str, but: str | None = None) -> None:
    """Remove the files of ``folder`` that match ``pattern``, whole or left unfinished by a killed
    writer, except the one named ``but``.
    """
    for each in (pattern, temp_path(Path(pattern)).name):
        for old in folder.glob(each):
            if old.name != but:
                old.unlink()


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk: a rename lives in the folder, not in the file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def nearest_folder(folder: Path) -> Path:
    """Return ``folder``, or the nearest one above it that exists; ValueError if that is a file."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise ValueError(f"{folder} cannot be a folder: {there} is a file; choose another place.")
    return there


def require_file_place(path: Path) -> None:
    """Raise ValueError unless a file can be written at ``path``: it is a folder, or its folder
    cannot be made.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file.")
    nearest_folder(path.parent)


def remove_if_empty(folder: Path) -> None:
    """Remove ``folder`` if it exists and is empty."""
    with contextlib.suppress(OSError):
        folder.rmdir()
