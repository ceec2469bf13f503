"""Every ``sh`` and ``python`` block of README and docs runs, or says why it is not run; and every
example runs, in the same folder.
"""

from __future__ import annotations

import functools
import re
import runpy
import shutil
import typing
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from docs.blocks import ROOT, Block, all_blocks, commands_of, run_block
from pictures import draw_coarsely
from trials import FULL_ONLY

from wdsbench.cli.main import COMMANDS
from wdsbench.cli.options import command_of

BLOCKS = list(all_blocks())
pytestmark = pytest.mark.timeout(600)

RUN = [block for block in BLOCKS if block.reason is None]
EXAMPLES = ROOT / "examples"
PATHS = sorted(EXAMPLES.glob("*.py"))
#: What each prints last.
LAST_LINE = {
    "graphs": r"\d+ graphs in the last batch, loss \d\.\d+",
    "own_detector": r"attention_entropy AUROC 0\.\d+ \[0\.\d+, [01]\.\d+\]",
    "pack_and_train": r"verdict: (adds|leak|none)",
    "training_loop": r"resumed: \d+ of \d+ steps of epoch 0 are left",
    "webdataset_pipeline": r"epoch 1: \d+ batches, \(16, 128\), first labels \[.*\]",
}
#: Why blocks are not run, and how many.
NOT_RUN = {"network": 1, "slow": 4, "torchrun": 1}


def is_long(block: Block) -> bool:
    """Return True for commands that run in `make test-faults` alone."""
    return block.language == "sh" and block.page != "README.md"


def name_of(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.trials
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, marks=FULL_ONLY if is_long(block) else (), id=name_of(block))
        for block in RUN
    ],
)
def test_the_block_runs(
    block: Block, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_coarsely(monkeypatch)
    monkeypatch.chdir(shutil.copytree(prepared, tmp_path / "home", symlinks=True))
    run_block(block)


@functools.cache
def parsers() -> Any:
    """Return the program with commands that build their options and do nothing else."""
    program = typer.Typer(pretty_exceptions_enable=False)
    for run in COMMANDS:

        def parse(*_: Any, **__: Any) -> None: ...

        parse.__annotations__ = typing.get_type_hints(run)
        program.command(run.__name__.removesuffix("_command"))(command_of(parse))
    return typer.main.get_command(program)


@pytest.mark.parametrize("block", [block for block in RUN if is_long(block)], ids=name_of)
def test_the_options_of_a_long_block_exist(block: Block) -> None:
    """And are accepted together."""
    for words in commands_of(block):
        parsers().main(words, standalone_mode=False)


def test_blocks_that_are_not_run_are_few() -> None:
    found = Counter(block.reason for block in BLOCKS if block.reason is not None)
    assert found == {reason: count for reason, count in NOT_RUN.items() if count}


def test_every_fence_says_what_it_is() -> None:
    """A block without a language would escape; ``text`` is for output and files."""
    for path in sorted({ROOT / "README.md", *(ROOT / "docs").glob("*.md")}):
        opened = False
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("```"):
                opened = not opened
                if opened:
                    assert line[3:] in ("sh", "python", "text", "csv", "json"), (path.name, line)


def test_there_are_five_examples() -> None:
    assert [path.stem for path in PATHS] == sorted(LAST_LINE)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in PATHS:
        assert f"examples/{path.name}" in readme
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_example_runs(
    path: Path,
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [str(prepared / "shards")]
    if path.stem == "pack_and_train":
        words = [str(prepared / "traces_data" / "*.pkl*")]
        words += [str(prepared / "ground_truth_scores.csv"), str(tmp_path)]
        # A block of README.md draws them.
        for plot in ("plot_roc", "plot_reliability", "plot_training"):
            monkeypatch.setattr(f"wdsbench.train.output.{plot}", lambda *_, **__: None)
    monkeypatch.setattr("sys.argv", [str(path), *words])
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    assert re.fullmatch(LAST_LINE[path.stem], out.splitlines()[-1]), out
