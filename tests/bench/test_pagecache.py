"""What is in memory can be seen, and dropped where the file system lets go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wdsbench.bench.cold import drop, read_all, resident_share

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="Linux only")


def test_a_file_that_was_just_written_is_resident_until_it_is_dropped(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "empty"]
    for path, size in zip(paths, (3 << 20, 5000, 0), strict=True):
        path.write_bytes(b"x" * size)
    assert resident_share(paths) == 1.0
    drop(paths)
    if resident_share(paths) != 0.0:
        pytest.skip("this file system keeps its pages (tmpfs)")
    assert resident_share(paths) == 0.0  # looking has read nothing
    read_all(paths)
    assert resident_share(paths) == 1.0


def test_reading_without_dd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    monkeypatch.setenv("PATH", "")
    read_all([tmp_path / "a"])
    with pytest.raises(FileNotFoundError):
        read_all([tmp_path / "b"])
