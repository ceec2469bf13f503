"""The ``sh`` and ``python`` blocks of the documentation, and how one is run.

A block after a line ``<!-- not run: REASON -->`` is not run. Every other block must succeed in a
copy of the prepared folder of its own. What a command of the block creates (``--out``,
``--shards``) is removed first, unless the command resumes or appends.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cli.runner import run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[a-z ]+) -->\n+)?"
    r"^```(?P<language>sh|python)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CONTINUING = ("--resume", "--append")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        page: File name of the page.
        line: Where the block starts, from 1.
        language: ``sh`` or ``python``.
        code: Its text.
        reason: Why it is not run; None: it is.
    """

    page: str
    line: int
    language: str
    code: str
    reason: str | None


def all_blocks() -> Iterator[Block]:
    """Yield the blocks of all pages."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for found in _BLOCK.finditer(text):
            line = text.count("\n", 0, found.start("code"))
            yield Block(path.name, line, found["language"], found["code"], found["reason"])


def run_block(block: Block) -> None:
    """Run a block in the current folder, a copy of the prepared one."""
    if block.language == "python":
        exec(compile(block.code, f"{block.page}:{block.line}", "exec"), {"__name__": "__main__"})
        return
    commands = list(commands_of(block))
    for words in commands:
        for before, word in pairwise(words):
            if before in ("--out", "--shards") and not set(_CONTINUING) & set(words):
                _remove(Path(word))
    for words in commands:
        assert run(*words) == 0, words


def commands_of(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command of a block, without ``wdsbench``."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "wdsbench", f"{block.page}:{block.line}: {line}"
            yield words[1:]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
