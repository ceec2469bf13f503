"""One writer at a time in a folder, and a list of what it made.

While a data set is being written its folder holds ``.wdsbench-unfinished``: locked by the writer
(``flock``, which a killed process lets go of), and naming every file the writer makes, before it is
made. So a failed run removes its own files and no others, the next run clears what a killed one
left, and two runs never write into one folder.

A run that gives a finished data set a new table also names the table it replaces, as
``replaced/NAME``. Whatever happens to it, ``index.json`` names one of the two; the other goes. New
shards that ``index.json`` does not name, those of a killed ``--append``, go too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from wdsbench.errors import PackError
from wdsbench.files import temp_path

MARKER_NAME = ".wdsbench-unfinished"

#: Before the name of a file that the run found and replaces. No file's own name has a slash.
_REPLACED = "replaced/"

#: Ends of names of files that the last file holds, or that nobody has a use for.
_HELD_OR_GONE = (".tar", "-journal")


class FolderClaim:
    """The right to write into one folder, from construction to `release`, `withdraw` (of a run
    that made a data set), `settle` (of a run that changed one) or `suspend` (of a run that goes on
    another time).
    """

    def __init__(
        self,
        folder: Path,
        *,
        last: str,
        superseded: Callable[[Path, Sequence[str]], Sequence[str]],
        keep: bool = False,
    ) -> None:
        """Make the folder and lock it; remove what a killed run left in it.

        Args:
            folder: Made with its parents where it does not exist.
            last: Name of the file a run writes last: where it is there, the run had ended, and
                nothing is removed but what is superseded.
            superseded: Returns, of some names of files, those that the last file has no use for.
            keep: What a killed run left of an unfinished data set stays, and becomes this run's.

        Raises:
            PackError: Another process is writing there, or it is not a folder.
        """
        self._folder = folder
        self._made_folders = _make_folders(folder)
        self._names: list[str] = []
        self._marker = self._lock()
        self._last = last
        self._superseded = superseded
        if (folder / last).exists():
            self._clear()
        elif keep:
            self._names = list(dict.fromkeys(self._marker_names()))
            os.ftruncate(self._marker, self._text().rfind(b"\n") + 1)  # nothing joins half a name
            return
        else:
            for name in (*self._marker_names(), last):
                self._remove(name)
        os.ftruncate(self._marker, 0)

    @property
    def names(self) -> list[str]:
        """Names of the files that this run made, or took over."""
        return list(self._names)

    def remove(self, name: str) -> None:
        """Remove a file of this run; it may be made again."""
        self._names.remove(name)
        self._remove(name)

    def new_file(self, name: str) -> Path:
        """Return the path of a file about to be made, having written its name down.

        Raises:
            PackError: There is such a file, which is not ours.
        """
        path = self._folder / name
        if path.exists():
            raise PackError(
                f"{path} exists and is not of this run; remove it, or choose another folder"
            )
        self._write_down(name)
        self._names.append(name)
        return path

    def replaces(self, name: str) -> None:
        """Write down that a file that is there will be superseded."""
        self._write_down(_REPLACED + name)

    def release(self) -> None:
        """Keep everything and let go of the folder."""
        (self._folder / MARKER_NAME).unlink()
        os.close(self._marker)

    def suspend(self) -> None:
        """Let go of the folder and leave everything in it for a run that goes on."""
        os.close(self._marker)

    def settle(self) -> None:
        """Let go of a finished data set, without what its last file, old or new, has no use for."""
        self._clear()
        self.release()

    def withdraw(self) -> None:
        """Remove everything this run made, folders too where nothing else has come into them."""
        if self._names:  # else the last file is not ours: nothing was made
            self._names.append(self._last)
        for name in reversed(self._names):
            self._remove(name)
        self.release()
        for folder in self._made_folders:
            with contextlib.suppress(OSError):  # not empty any more
                folder.rmdir()

    def _lock(self) -> int:
        path = self._folder / MARKER_NAME
        try:
            marker = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise PackError(f"cannot write into {self._folder}: {error.strerror}") from error
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A run that has just ended took the marker away between our two calls.
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

    def _write_down(self, line: str) -> None:
        left = memoryview(line.encode() + b"\n")
        while left:
            left = left[os.write(self._marker, left) :]
        os.fsync(self._marker)

    def _text(self) -> bytes:
        return os.pread(self._marker, os.fstat(self._marker).st_size, 0)

    def _marker_names(self, *, replaced: bool = False) -> list[str]:
        """Return the names that were written down; a last one cut short was not used yet.

        Args:
            replaced: Also those of files that the run found.
        """
        names = self._text().decode(errors="replace").split("\n")[:-1]
        if replaced:
            names = [name.removeprefix(_REPLACED) for name in names]
        return [name for name in names if name == Path(name).name]

    def _clear(self) -> None:
        """Remove what was written down and the last file has no use for, and its unfinished
        successor.
        """
        names = self._marker_names(replaced=True)
        if names:
            temp_path(self._folder / self._last).unlink(missing_ok=True)
        for name in (*self._unnamed(), *self._superseded(self._folder, names)):
            self._remove(name)

    def _unnamed(self) -> list[str]:
        """Return those of the shards and journals that were written down and that the last file,
        which is JSON, does not hold; none where it cannot be read: then nothing is known.
        """
        names = [name for name in self._marker_names() if name.endswith(_HELD_OR_GONE)]
        if not names:
            return []
        try:
            held = set(_texts(json.loads((self._folder / self._last).read_bytes())))
        except (OSError, ValueError, RecursionError):
            return []
        return [name for name in names if name not in held]

    def _remove(self, name: str) -> None:
        path = self._folder / name
        path.unlink(missing_ok=True)
        temp_path(path).unlink(missing_ok=True)


def _texts(value: Any) -> Iterator[str]:
    """Yield every text that a JSON value holds."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder with its parents and return those that were made, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise PackError(f"{folder} is not a folder") from error
    except OSError as error:
        raise PackError(f"cannot make {folder}: {error.strerror}") from error
    return missing
