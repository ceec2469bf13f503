"""One writer at a time in a folder, and a list of what it made.

While a data set is being written its folder holds ``.wdsbench-unfinished``: locked by the writer
(``flock``, which a killed process lets go of), and naming every file the writer makes, before it is
made. So a failed run removes its own files and no others, the next run clears what a killed one
left, and two runs never write into one folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from wdsbench.errors import PackError
from wdsbench.files import temp_path

MARKER_NAME = ".wdsbench-unfinished"


class FolderClaim:
    """The right to write into one folder, from construction to `release` or `withdraw`."""

    def __init__(self, folder: Path, *, last: str) -> None:
        """Make the folder and lock it; remove what a killed run left in it.

        Args:
            folder: Made with its parents where it does not exist.
            last: Name of the file a run writes last: where it is there, the run had ended, and
                nothing is removed.

        Raises:
            PackError: Another process is writing there, or it is not a folder.
        """
        self._folder = folder
        self._made_folders = _make_folders(folder)
        self._names: list[str] = []
        self._marker = self._lock()
        self._last = last
        if not (folder / last).exists():
            for name in (*self._marker_names(), last):
                self._remove(name)
        os.ftruncate(self._marker, 0)

    def new_file(self, name: str) -> Path:
        """Return the path of a file about to be made, having written its name down.

        Raises:
            PackError: There is such a file, which is not ours.
        """
        path = self._folder / name
        if path.exists():
            raise PackError(f"{path} exists and is not of this run; choose another --out")
        os.write(self._marker, name.encode() + b"\n")
        os.fsync(self._marker)
        self._names.append(name)
        return path

    def release(self) -> None:
        """Keep everything and let go of the folder."""
        (self._folder / MARKER_NAME).unlink()
        os.close(self._marker)

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
        marker = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A run that has just ended took the marker away between our two calls.
            lost = not path.exists() or not os.path.samestat(path.stat(), os.fstat(marker))
        except BlockingIOError:
            lost = True
        if lost:
            os.close(marker)
            raise PackError(f"another process is writing into {self._folder}; choose another --out")
        return marker

    def _marker_names(self) -> list[str]:
        """Return the names an earlier run wrote down; a last one cut short was not used yet."""
        text = os.pread(self._marker, os.fstat(self._marker).st_size, 0).decode(errors="replace")
        return [name for name in text.split("\n")[:-1] if name == Path(name).name]

    def _remove(self, name: str) -> None:
        path = self._folder / name
        path.unlink(missing_ok=True)
        temp_path(path).unlink(missing_ok=True)


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
