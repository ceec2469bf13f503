"""Every ``sh`` and ``python`` block of README and docs runs, or says why it is not run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from docs.blocks import ROOT, Block, all_blocks, run_blocks

BLOCKS = list(all_blocks())
pytestmark = pytest.mark.timeout(600)

RUN = [block for block in BLOCKS if block.reason is None]
#: Why blocks are not run, and how many.
NOT_RUN = {"network": 1, "slow": 3, "torchrun": 1}


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[Block, tuple[int, str]]:
    """Return exit code and output of every selected block."""
    names = {item.name for item in request.session.items}
    chosen = [block for block in RUN if f"test_the_block_runs[{block.page}:{block.line}]" in names]
    return run_blocks(chosen, prepared, tmp_path_factory.mktemp("blocks"))


@pytest.mark.parametrize("block", RUN, ids=lambda block: f"{block.page}:{block.line}")
def test_the_block_runs(block: Block, results: dict[Block, tuple[int, str]]) -> None:
    code, output = results[block]
    assert code == 0, f"{block.page}:{block.line}\n{block.code}\n{output}"


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
