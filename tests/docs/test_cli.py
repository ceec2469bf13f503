"""docs/cli.md is what the commands' help says now."""

from __future__ import annotations

from pathlib import Path

from wdsbench.cli.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    """Else: ``python tools/write_cli_reference.py > docs/cli.md``."""
    assert PAGE.read_text(encoding="utf-8") == reference()
