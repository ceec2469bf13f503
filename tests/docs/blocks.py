"""The ``sh`` and ``python`` blocks of the documentation, and how one is run.

A block after a line ``<!-- not run: REASON -->`` is not run. Every other block must succeed in a
copy of the prepared folder of its own. What a command of the block creates (``--out``,
``--shards``) is removed first, unless the command resumes or appends.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from forks import start_code

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[a-z ]+) -->\n+)?"
    r"^```(?P<language>sh|python)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CONTINUING = ("--resume", "--append")

#: Runs blocks one after the other, each in a child of its own: what commands import is imported
#: once. A block's output and exit code are written to files beside its folder.
RUNNER = """
import json, os, sys, traceback
from pathlib import Path

import transformers.models.llama.modeling_llama
import wdsbench.llm.extract, wdsbench.llm.recompute
from wdsbench.cli.main import main


def run(job):
    os.chdir(job["folder"])
    for descriptor in (1, 2):
        os.dup2(os.open(job["folder"] + ".out", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    if job["python"] is not None:
        exec(compile(job["python"], "<block>", "exec"), {"__name__": "__main__"})
    for words in job["commands"]:
        try:
            main(words)
        except SystemExit as end:
            if end.code:
                print("failed:", *words)
                raise


for job in json.loads(Path(sys.argv[1]).read_text()):
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        Path(job["folder"] + ".code").write_text(str(code))
        continue
    code = 1
    try:
        run(job)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""
_SECONDS = 500.0


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


def run_blocks(blocks: list[Block], prepared: Path, home: Path) -> dict[Block, tuple[int, str]]:
    """Run each block in a copy of ``prepared`` below ``home``; return exit codes and outputs."""
    jobs = []
    for number, block in enumerate(blocks):
        folder = home / f"block-{number}"
        shutil.copytree(prepared, folder, symlinks=True)
        commands = list(commands_of(block)) if block.language == "sh" else []
        for words in commands:
            for before, word in pairwise(words):
                if before in ("--out", "--shards") and not set(_CONTINUING) & set(words):
                    _remove(folder / word)
        code = block.code if block.language == "python" else None
        jobs.append({"folder": str(folder), "python": code, "commands": commands})
    (home / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    process = start_code(RUNNER, home / "jobs.json")
    out, err = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, out + err
    return {
        block: (
            int(Path(job["folder"] + ".code").read_text()),
            Path(job["folder"] + ".out").read_text(encoding="utf-8"),
        )
        for block, job in zip(blocks, jobs, strict=True)
    }


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
