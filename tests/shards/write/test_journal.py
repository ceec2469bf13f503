"""The journal of an unfinished data set, where it is damaged (form: tests/test_jsonlines.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from wdsbench.errors import PackError
from wdsbench.shards.write.shard import JOURNAL_NAME, read_journal


def test_an_error_says_how_to_continue(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_NAME).write_text('{"run":1}\nrubbish\n{"shard":2}\n')
    with pytest.raises(PackError, match="journal, line 2: not a line of a journal; restore it"):
        read_journal(tmp_path)
