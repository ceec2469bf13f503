"""Runs a command of the program in this process."""

from __future__ import annotations

import pytest

from wdsbench.cli.main import main


def run(*words: object) -> int:
    """Run a command line and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    code = ended.value.code
    return code if isinstance(code, int) else int(code is not None)
