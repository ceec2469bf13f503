"""Files to the disk in the background: order, renames, and errors that must not be lost."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from wdsbench.files import temp_path
from wdsbench.shards.write.flush import Flusher

STEP_BYTES = 32_000_000


def test_a_whole_file_is_renamed_after_it_is_flushed(tmp_path: Path) -> None:
    path, seen = tmp_path / "a.tar", []
    file = temp_path(path).open("wb")
    file.write(b"abc")
    flusher = Flusher()
    flusher.flush_whole(file, path, lambda: seen.append(path.read_bytes()))
    flusher.wait()
    flusher.close()
    assert seen == [b"abc"]
    assert file.closed
    assert list(tmp_path.iterdir()) == [path]


def test_a_growing_file_is_flushed_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fdatasync", flushed.append)
    flusher = Flusher()
    with (tmp_path / "a").open("wb") as file:
        for size in (1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 2 * STEP_BYTES):
            flusher.flush_part(file, size)
            assert flusher._part is None or flusher._part.result() is None
        assert flushed == [file.fileno()] * 2
        flusher.close()


def test_a_slow_disk_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    asked: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: (asked.append(fd), go.wait()))
    flusher = Flusher()
    with (tmp_path / "a").open("wb") as file:
        for step in range(1, 9):
            flusher.flush_part(file, step * STEP_BYTES)
        go.set()
        flusher.close()
        assert len(asked) == 1


def test_an_error_of_a_part_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells it once: the flush of the whole file succeeds after it."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    flusher = Flusher()
    with (tmp_path / "other").open("wb") as other:
        flusher.flush_part(other, STEP_BYTES)
        assert flusher._part is not None
        assert isinstance(flusher._part.exception(), OSError)
        with pytest.raises(OSError, match="Input/output"):
            flusher.flush_part(other, 2 * STEP_BYTES)
        flusher.close()
    path = tmp_path / "a.tar"
    flusher = Flusher()
    with temp_path(path).open("wb") as file:
        flusher.flush_part(file, STEP_BYTES)
        flusher.flush_whole(file, path, lambda: None)
        with pytest.raises(OSError, match="Input/output"):
            flusher.wait()
        flusher.close()
    assert not path.exists()


def test_without_fdatasync_parts_are_flushed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS."""
    flushed: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", flushed.append)
    flusher = Flusher()
    with (tmp_path / "a").open("wb") as file:
        flusher.flush_part(file, STEP_BYTES)
        flusher.close()
        assert flushed == [file.fileno()]
