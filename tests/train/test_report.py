"""The table shows the figures that were measured, and who has none and why."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from wdsbench.train.report import markdown, print_results
from wdsbench.train.results import DetectorResult, Difference, Results

BASELINE = DetectorResult(
    auroc=0.7,
    auroc_interval=(0.65, 0.75),
    auprc=0.6,
    f1=0.5,
    accuracy=0.4,
    threshold=-1.0,
    fpr95=0.9,
    ece=None,
    n_pos=30,
    n_neg=40,
    val_auroc=0.71,
    parameters=0,
)
LSTM = DetectorResult(
    **{
        **vars(BASELINE),
        "auroc": 0.8126,
        "ece": 0.031,
        "difference_to_logprob_mean": Difference("logprob_mean", 0.1126, (0.05, 0.17)),
    }
)
RESULTS = Results(
    detectors={"logprob_mean": BASELINE, "lstm": LSTM},
    not_available={"gnn": "not available: repack with --attention [edges]"},
    dataset={"splits": {"test": {"n": 71, "n_pos": 30, "n_neg": 40, "n_unlabelled": 1}}},
    config={"confidence": 0.9},
)


@pytest.mark.parametrize("width", [80, 160])
def test_terminal_table(width: int) -> None:
    text = io.StringIO()
    print_results(RESULTS, Console(file=text, width=width))
    shown = text.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    for words in (
        "0.813 [0.650, 0.750]",
        "+0.113 [+0.050, +0.170]",
        "30/40",
        "0.031",
        "[low, high]: 90 %",
        "gnn: not available: repack with --attention [edges]",
    ):
        assert words in shown


def test_markdown() -> None:
    lines = markdown(RESULTS).splitlines()
    row = next(line for line in lines if line.startswith("| lstm"))
    assert row.split(" | ")[1] == "0.813 [0.650, 0.750]"
    assert "- `gnn`: not available: repack with --attention [edges]" in lines
    assert "| test | 30 | 40 | 1 |" in lines
    header = next(line for line in lines if line.startswith("| detector"))
    assert header.count("|") == row.count("|") == lines[lines.index(header) + 1].count("|")


def test_no_detector_at_all() -> None:
    print_results(Results({}), Console(file=io.StringIO()))
    assert "# Detectors" in markdown(Results({}))
