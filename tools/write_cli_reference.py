"""Print the reference of all commands: ``python tools/write_cli_reference.py > docs/cli.md``."""

from __future__ import annotations

from typing import Any

import typer

from wdsbench.cli.main import app

HEAD = """# Commands

Generated from the commands' help texts by `tools/write_cli_reference.py`; do not edit.
`wdsbench COMMAND --help` prints the same. Every command exits with 0, with 1 and one line on stderr
after an error, or with 2 for a wrong command line. `--traceback`, anywhere on the line, shows where
an error was raised.
"""


def reference() -> str:
    """Return the Markdown page: each command's usage, help text, example and options."""
    group: Any = typer.main.get_command(app)
    parts = [HEAD, *(_command(name, command) for name, command in group.commands.items())]
    return "\n".join(parts)


def _command(name: str, command: Any) -> str:
    rows = [_row(parameter) for parameter in command.params]
    return "\n".join(
        [
            f"## wdsbench {name}",
            "",
            _prose(command.help),
            "",
            "```text",
            command.epilog.removeprefix("Example: "),
            "```",
            "",
            "| option | value | default | description |",
            "|---|---|---|---|",
            *("| " + " | ".join(row) + " |" for row in rows),
            "",
        ]
    )


def _row(parameter: Any) -> tuple[str, str, str, str]:
    names = [*parameter.opts, *parameter.secondary_opts]
    option = names[0].startswith("-")
    name = (
        ", ".join(f"`{each}`" for each in names)
        if option
        else f"`{parameter.metavar or names[0].upper()}`"
    )
    value = _cell(parameter.metavar or "") if option else "argument"
    default = "required" if parameter.required else _default(parameter.default)
    return name, value, default, _cell(parameter.help)


def _default(value: Any) -> str:
    if value is None or value is False or value == []:
        return ""
    if value is True:
        return "on"
    return f"`{','.join(value) if isinstance(value, list | tuple) else value}`"


def _cell(text: str) -> str:
    """Return text for a cell of a table: no line breaks, no bars, no HTML."""
    text = " ".join(text.split()).replace("|", "\\|")
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("*", "\\*")


def _prose(text: str) -> str:
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


if __name__ == "__main__":
    print(reference(), end="")
