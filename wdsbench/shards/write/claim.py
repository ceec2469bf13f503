"""One writer at a time in a folder, and a list of the files that it creates.

While a data set is being written its folder holds ``.wdsbench-unfinished``: locked by the writer
(``flock``, which ends with the process), and listing every file before it is created. A failed run
removes its own files, and the next run those of a killed one. A run that replaces the table of a
finished data set also lists the old table, as ``replaced/NAME``: of the tables and new shards that
are listed, those that ``index.json`` does not name are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from wdsbench.errors import PackError
from wdsbench.files import temp_path
from wdsbench.shards.format.index import INDEX_NAME
from wdsbench.shards.format.table import is_table_name

MARKER_NAME: Final = ".wdsbench-unfinished"

#: Prefix of a listed file that existed before the run. No file name contains a slash.
_REPLACED: Final = "replaced/"

#: Suffixes of files that, like tables, are removed unless ``index.json`` names them.
_SHARD_OR_JOURNAL: Final = (".tar", "-journal")


class FolderClaim:
    """The exclusive right to write into a folder until `commit`, `rollback` or `suspend`. As a
    context it calls `rollback` at the end unless one of them was called.
    """

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        """Create the folder, lock it, and remove the files of a killed run; with ``resume`` those
        of an unfinished data set are kept and count as created by this run.

        Raises:
            PackError: Another process is writing there, or it is not a folder.
        """
        self._folder = folder
        self._new_folders = _make_folders(folder)
        self._names: list[str] = []
        self._marker = self._lock()
        self._open = True
        self._has_index = (folder / INDEX_NAME).exists()
        if self._has_index:
            self._remove_superseded()
        elif resume:
            self._names = list(dict.fromkeys(self._listed_names()))
            # A name that was cut short must not be joined to the next.
            os.ftruncate(self._marker, self._text().rfind(b"\n") + 1)
            return
        else:
            for name in (*self._listed_names(), INDEX_NAME):
                self._remove(name)
        os.ftruncate(self._marker, 0)

    def __enter__(self) -> FolderClaim:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self.rollback()

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def remove(self, name: str) -> None:
        """Remove a file of this run; it may be created again."""
        self._names.remove(name)
        self._remove(name)

    def new_file(self, name: str) -> Path:
        """List a file to be created and return its path; raise PackError if it exists."""
        path = self._folder / name
        if path.exists():
            detail = f"{path} exists and does not belong to this run"
            raise PackError(f"{detail}; remove it, or choose another folder")
        self._list(name)
        self._names.append(name)
        return path

    def list_replaced(self, name: str) -> None:
        """List an existing table that the new index will not name."""
        self._list(_REPLACED + name)

    def commit(self) -> None:
        """End the claim and keep everything but what ``index.json`` does not name."""
        self._remove_superseded()
        self._end()

    def rollback(self) -> None:
        """End the claim and remove the files and empty folders that this run created. A data set
        that existed before, or whose index has been replaced, stays complete.
        """
        if self._has_index:
            self.commit()
            return
        if self._names:  # otherwise nothing was created, and an index is not ours
            self._names.append(INDEX_NAME)
        for name in reversed(self._names):
            self._remove(name)
        self._end()
        for folder in self._new_folders:
            with contextlib.suppress(OSError):  # no longer empty
                folder.rmdir()

    def suspend(self) -> None:
        """End the claim and leave everything in the folder for a run that resumes."""
        self._open = False
        os.close(self._marker)

    def _end(self) -> None:
        (self._folder / MARKER_NAME).unlink()
        self.suspend()

    def _lock(self) -> int:
        path = self._folder / MARKER_NAME
        try:
            marker = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise PackError(f"cannot write into {self._folder}: {error.strerror}") from error
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A run that ended between the two calls has removed the marker.
            lost = not path.exists() or not os.path.samestat(path.stat(), os.fstat(marker))
        except BlockingIOError:
            lost = True
        if lost:
            os.close(marker)
            raise PackError(
                f"another process is writing into {self._folder}; wait until it has ended, or"
                " choose another folder"
            )
        return marker

    def _list(self, line: str) -> None:
        rest = memoryview(line.encode() + b"\n")
        while rest:
            rest = rest[os.write(self._marker, rest) :]
        os.fsync(self._marker)

    def _text(self) -> bytes:
        return os.pread(self._marker, os.fstat(self._marker).st_size, 0)

    def _listed_names(self, *, replaced: bool = False) -> list[str]:
        """Return the names of the run's files, with ``replaced`` also of replaced tables. A last
        name that was cut short was not used yet.
        """
        names = self._text().decode(errors="replace").split("\n")[:-1]
        if replaced:
            names = [name.removeprefix(_REPLACED) for name in names]
        return [name for name in names if name == Path(name).name]

    def _remove_superseded(self) -> None:
        """Remove the temporary index, and listed files that ``index.json`` does not name."""
        names = self._listed_names(replaced=True)
        if not names:
            return
        temp_path(self._folder / INDEX_NAME).unlink(missing_ok=True)
        try:
            named = set(_strings(json.loads((self._folder / INDEX_NAME).read_bytes())))
        except (OSError, ValueError, RecursionError):
            return
        for name in names:
            if name not in named and (name.endswith(_SHARD_OR_JOURNAL) or is_table_name(name)):
                self._remove(name)

    def _remove(self, name: str) -> None:
        path = self._folder / name
        path.unlink(missing_ok=True)
        temp_path(path).unlink(missing_ok=True)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _make_folders(folder: Path) -> list[Path]:
    """Create a folder with its parents and return the new ones, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise PackError(f"{folder} is not a folder") from error
    except OSError as error:
        raise PackError(f"cannot create {folder}: {error.strerror}") from error
    return missing
