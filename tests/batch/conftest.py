"""Members in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from batch.members import Members


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path / "members")
