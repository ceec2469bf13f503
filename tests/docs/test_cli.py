"""docs/cli.md is what the commands' help says now."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    """Else: ``python tools/write_cli_reference.py > docs/cli.md``."""
    tool = runpy.run_path(str(ROOT / "tools" / "write_cli_reference.py"))
    assert PAGE.read_text(encoding="utf-8") == tool["reference"]()
