"""Every example runs on a small data set, and stays short."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PATHS = sorted(EXAMPLES.glob("*.py"))
#: What each prints last.
LAST_LINE = {
    "graphs": r"\d+ graphs in the last batch, loss \d\.\d+",
    "own_detector": r"attention_entropy AUROC 0\.\d+ \[0\.\d+, [01]\.\d+\]",
    "pack_and_train": r"lstm +AUROC [01]\.\d+ \[\d\.\d+, \d\.\d+\]",
    "training_loop": r"resumed: \d+ of \d+ steps of epoch 0 are left",
    "webdataset_pipeline": r"epoch 1: \d+ batches, \(16, 128\), first labels \[.*\]",
}


def test_there_are_five() -> None:
    assert [path.stem for path in PATHS] == sorted(LAST_LINE)
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
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
