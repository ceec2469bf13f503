"""The file and the table of a search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from train.searches import COUNT, figures, load_search, run, whole

from wdsbench.errors import DetectorError
from wdsbench.train.trials import SEARCH_NAME, SearchResult, Trial, print_search


def test_what_is_written() -> None:
    result, out = whole()
    assert [path.name for path in out.iterdir()] == [SEARCH_NAME]
    value = json.loads((out / SEARCH_NAME).read_text())
    assert len(value["trials"]) == COUNT
    for trial in value["trials"]:
        assert trial["state"] == "complete"
        assert 0 <= trial["val_auroc"] <= 1
        assert trial["epochs"] == 2
        assert trial["seconds"] > 0
    top = max(trial["val_auroc"] for trial in value["trials"])
    assert value["best"]["val_auroc"] == top
    assert value["best"] in value["trials"]
    assert result.best is not None
    assert value["best"]["settings"] == result.best.settings
    assert figures(load_search(out)) == figures(result)


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 2}', '{"format": 1, "trials": [1]}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / SEARCH_NAME).write_text(content)
    with pytest.raises(DetectorError, match=r"not a search\.json of this version"):
        run(tmp_path, 1, resume=True)
    with pytest.raises(DetectorError, match=r"not a search\.json of this version"):
        load_search(tmp_path)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"learning_rate": 0.002, "hidden": 16, "depth": 1, "dropout": 0.3}
    trials = [
        Trial(0, settings, 0.5, 1, 0.1, "complete"),
        Trial(1, {**settings, "learning_rate": 0.00123, "depth": 3}, 0.75, 1, 0.1, "complete"),
        Trial(2, settings, None, 0, 0.1, "failed", "the loss of epoch 0 is nan"),
    ]
    print_search(SearchResult("lstm", trials), Console(width=100))
    printed = capsys.readouterr().out
    assert "Trials of lstm, on validation" in printed
    for cell in ("learning rate", "0.00123", "0.750", "failed"):
        assert cell in printed
    assert "trial 2: the loss of epoch 0 is nan" in printed
    assert (
        "Best: trial 1 (--learning-rate 0.00123 --hidden 16 --depth 3 --dropout 0.3)"
        in " ".join(printed.split())
    )
