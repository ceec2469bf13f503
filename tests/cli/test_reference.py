"""The Markdown reference of all commands."""

from __future__ import annotations

import runpy
from pathlib import Path

import typer

from wdsbench.cli.main import app

TOOL = Path(__file__).parents[2] / "tools" / "write_cli_reference.py"


def test_every_command_and_option_is_on_the_page() -> None:
    page = runpy.run_path(str(TOOL))["reference"]()
    sections = {part.split("\n", 1)[0]: part for part in page.split("\n## wdsbench ")[1:]}
    group = typer.main.get_command(app)
    assert list(sections) == list(group.commands)  # type: ignore[attr-defined]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert f"\nwdsbench {name} " in sections[name]
        for parameter in command.params:
            for option in [*parameter.opts, *parameter.secondary_opts]:
                shown = option if option.startswith("-") else parameter.metavar or option.upper()
                assert f"`{shown}`" in sections[name]
            assert parameter.help
