"""The journal of an unfinished data set: what could not be written, and what is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from limits import files_end_at

from wdsbench.errors import PackError
from wdsbench.shards.write.journal import Journal, read_journal


def test_nothing_is_told_behind_a_line_that_was_cut_short(tmp_path: Path) -> None:
    """A full disk has room again once a spent file is removed; a line behind half a line is lost,
    and with it that files were removed.
    """
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append({"run": 1})
    end = path.stat().st_size
    with files_end_at(end + 10), pytest.raises(OSError, match="File too large"):
        journal.append({"shard": "x" * 100})
    assert path.stat().st_size == end + 10
    with pytest.raises(OSError, match="File too large"):
        journal.append({"removed": 1})
    journal.close()
    assert read_journal(path) == ([{"run": 1}], end)
    journal = Journal(path, end_bytes=end)
    journal.append({"shard": 2})
    journal.close()
    assert read_journal(path)[0] == [{"run": 1}, {"shard": 2}]


@pytest.mark.parametrize("line", ["rubbish\n", "[1]\n", "\0\0\n"])
def test_a_damaged_line_within_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text(f'{{"run":1}}\n{line}{{"shard":2}}\n')
    with pytest.raises(PackError, match="journal, line 2: not a line of a journal; put it back"):
        read_journal(path)
