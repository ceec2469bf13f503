"""Every ``sh`` and ``python`` block of README and docs runs, or says why it is not run; and every
example runs, in the same folder.
"""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest
from docs.blocks import ROOT, Block, all_blocks, commands_of, run_blocks
from trials import FULL, FULL_ONLY

from wdsbench.cli.main import main

BLOCKS = list(all_blocks())
pytestmark = pytest.mark.timeout(600)

RUN = [block for block in BLOCKS if block.reason is None]
EXTRACT = "wdsbench extract --model ./my-model --questions questions.jsonl --out traces_data/"
#: Starts of blocks that run in `make test-faults` alone: other blocks run their commands.
LONG = (
    "wdsbench plan --model ./my-model --questions questions.jsonl    #",
    f"{EXTRACT} --tokens",
    f"{EXTRACT} --attention",
    "wdsbench train shards/ --detector logprob_mean,probe_logistic,lstm",
    "wdsbench view shards/ --trace 0 --out trace.png",
)
EXAMPLES = ROOT / "examples"
PATHS = sorted(EXAMPLES.glob("*.py"))
#: What each prints last.
LAST_LINE = {
    "graphs": r"\d+ graphs in the last batch, loss \d\.\d+",
    "own_detector": r"attention_entropy AUROC 0\.\d+ \[0\.\d+, [01]\.\d+\]",
    "pack_and_train": r"lstm +AUROC [01]\.\d+ \[\d\.\d+, \d\.\d+\]",
    "training_loop": r"resumed: \d+ of \d+ steps of epoch 0 are left",
    "webdataset_pipeline": r"epoch 1: \d+ batches, \(16, 128\), first labels \[.*\]",
}
#: Why blocks are not run, and how many.
NOT_RUN = {"network": 1, "slow": 4, "torchrun": 1}


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[Block, tuple[int, str]]:
    """Return exit code and output of every selected block."""
    names = {item.name for item in request.session.items}
    chosen = [
        block
        for block in RUN
        if f"test_the_block_runs[{block.page}:{block.line}]" in names
        and (FULL or not is_long(block))
    ]
    return run_blocks(chosen, prepared, tmp_path_factory.mktemp("blocks"))


def is_long(block: Block) -> bool:
    return block.code.startswith(LONG)


def name_of(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, marks=FULL_ONLY if is_long(block) else (), id=name_of(block))
        for block in RUN
    ],
)
def test_the_block_runs(block: Block, results: dict[Block, tuple[int, str]]) -> None:
    code, output = results[block]
    assert code == 0, f"{block.page}:{block.line}\n{block.code}\n{output}"


def test_long_blocks_exist() -> None:
    for first in LONG:
        assert [block for block in RUN if block.code.startswith(first)], first


@pytest.mark.parametrize("block", [block for block in RUN if is_long(block)], ids=name_of)
def test_the_options_of_a_long_block_exist(
    block: Block, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in commands_of(block):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert not ended.value.code, (words, capsys.readouterr().err)


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
