"""The list of files that a run makes, where it could not be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from limits import files_end_at

from wdsbench.shards.write.claim import MARKER_NAME, FolderClaim


def claim(folder: Path) -> FolderClaim:
    return FolderClaim(folder, resume=True)


def test_half_a_name_is_an_error_and_joins_no_other(tmp_path: Path) -> None:
    first = claim(tmp_path)
    first.new_file("train-000000.tar").touch()
    end = (tmp_path / MARKER_NAME).stat().st_size
    with files_end_at(end + 6), pytest.raises(OSError, match="File too large"):
        first.new_file("train-000001.tar")
    first.suspend()
    second = claim(tmp_path)
    assert second.names == ["train-000000.tar"]
    second.new_file("val-000000.tar").touch()
    second.suspend()
    third = claim(tmp_path)
    assert third.names == ["train-000000.tar", "val-000000.tar"]
    third.rollback()
    assert list(tmp_path.iterdir()) == []
