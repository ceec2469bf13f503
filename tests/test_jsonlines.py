"""Files of JSON lines: lines that could not be written, damaged lines, two writers."""

from __future__ import annotations

from pathlib import Path

import pytest
from limits import files_end_at

from wdsbench.jsonlines import JsonLinesError, JsonLinesWriter, read_json_lines


def test_nothing_is_appended_after_a_line_that_was_cut_short(tmp_path: Path) -> None:
    """A full disk has room again once a packed file is removed; a line after half a line would be
    lost, and with it the record of which files were removed.
    """
    path = tmp_path / "journal"
    with JsonLinesWriter(path) as lines:
        lines.append({"run": 1})
        end = path.stat().st_size
        with files_end_at(end + 10), pytest.raises(OSError, match="File too large"):
            lines.append({"shard": "x" * 100})
        assert path.stat().st_size == end + 10
        with pytest.raises(OSError, match="File too large"):
            lines.append({"removed": 1})
    assert read_json_lines(path) == ([{"run": 1}], end)
    with JsonLinesWriter(path) as lines:
        lines.truncate(end)
        lines.append({"shard": 2})
    assert read_json_lines(path)[0] == [{"run": 1}, {"shard": 2}]


@pytest.mark.parametrize("line", ["rubbish\n", "[1]\n", "\0\0\n"])
def test_a_damaged_line_before_the_last_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text(f'{{"run":1}}\n{line}{{"shard":2}}\n')
    with pytest.raises(JsonLinesError, match="journal, line 2: not a line of a journal"):
        read_json_lines(path)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with JsonLinesWriter(path), pytest.raises(BlockingIOError):
        JsonLinesWriter(path)
    JsonLinesWriter(path).close()
