"""Print the reference of all commands: ``python tools/write_cli_reference.py > docs/cli.md``."""

from __future__ import annotations

from wdsbench.cli.reference import reference

if __name__ == "__main__":
    print(reference(), end="")
