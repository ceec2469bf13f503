"""Tables show the measured figures, conclusions, and the reasons of missing detectors."""

from __future__ import annotations

import io
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from rich.console import Console

from wdsbench.errors import DetectorError
from wdsbench.files import write_json
from wdsbench.train.report import markdown, print_results, verdict
from wdsbench.train.results import (
    DetectorResult,
    Difference,
    GroupFigures,
    Results,
    SeedSpread,
    Spread,
    load_results,
)

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
# Every figure another number, so that each can be looked for.
LSTM = DetectorResult(
    auroc=0.8126,
    auroc_interval=(0.7631, 0.8642),
    auprc=0.7453,
    auprc_interval=(0.6813, 0.8024),
    f1=0.7135,
    accuracy=0.7346,
    threshold=0.4257,
    fpr95=0.5868,
    ece=0.0379,
    ece_scaled=0.0218,
    brier=0.1891,
    brier_scaled=0.1772,
    temperature=1.4383,
    n_pos=31,
    n_neg=39,
    n_unlabelled=1,
    val_auroc=0.8294,
    parameters=23456,
    epochs=17,
    best_epoch=10,
    seconds_per_epoch=2.3416,
    sign=1,
    chosen={"layer": 13, "token": "last_answer"},
    difference_to_logprob_mean=Difference("logprob_mean", 0.1126, (0.0512, 0.1708)),
    difference_to_best=None,
    difference_to_control=Difference("question_control", 0.0421, (0.0134, 0.0716)),
    adds_to_text=Difference("text_control", 0.0327, (0.0118, 0.0543)),
    verdict="adds",
    groups=GroupFigures(0.7912, {"easy": 0.8456, "hard": 0.7368}, 1),
)
RESULTS = Results(
    detectors={
        "logprob_mean": replace(
            BASELINE, difference_to_best=Difference("lstm", -0.1126, (-0.1708, -0.0512))
        ),
        "lstm": LSTM,
    },
    not_available={"gnn": "not available: repack with --attention [edges]"},
    dataset={"splits": {"test": {"n": 71, "n_pos": 31, "n_neg": 39, "n_unlabelled": 1}}},
    config={"confidence": 0.9, "detectors": ["logprob_mean", "lstm", "gnn"]},
)
# What every detector's row of some table says of LSTM's figures.
SHOWN = {
    "auroc": "0.813",
    "auroc_interval": "[0.763, 0.864]",
    "auprc": "0.745",
    "auprc_interval": "[0.681, 0.802]",
    "f1": "0.714",
    "accuracy": "0.735",
    "threshold": "0.4257",
    "fpr95": "0.587",
    "ece": "0.038",
    "ece_scaled": "0.022",
    "brier": "0.189",
    "brier_scaled": "0.177",
    "temperature": "1.438",
    "n_pos": "31/",
    "n_neg": "/39",
    "val_auroc": "0.829",
    "parameters": "23,456",
    "epochs": "| 17 |",
    "best_epoch": "| 11 |",  # people count from 1
    "seconds_per_epoch": "2.34",
    "sign": "+1",
    "chosen": "layer 13, token last_answer",
    "difference_to_logprob_mean": "+0.113 [+0.051, +0.171]",
    "difference_to_control": "+0.042 [+0.013, +0.072]",
    "adds_to_text": "+0.033 [+0.012, +0.054]",
    "verdict": "| adds |",
    "groups": "| 0.791 |",
}


def shown(results: Results, width: int) -> str:
    text = io.StringIO()
    print_results(results, Console(file=text, width=width))
    return text.getvalue()


def seeded(results: Results) -> Results:
    """Return ``results`` as if of three seeds, none of which the baseline follows."""
    spread = Spread(0.8126, 0.0147, 0.7961, 0.8287)
    still = Spread(0.7, 0.0, 0.7, 0.7)
    return replace(
        results,
        detectors={
            "logprob_mean": replace(
                results.detectors["logprob_mean"], seeds=SeedSpread(3, {"auroc": still})
            ),
            "lstm": replace(results.detectors["lstm"], seeds=SeedSpread(3, {"auroc": spread})),
        },
    )


@pytest.mark.parametrize("width", [80, 120, 200])
def test_terminal_tables(width: int) -> None:
    text = shown(RESULTS, width)
    assert max(map(len, text.splitlines())) <= width
    for words in (
        "0.813 [0.763, 0.864]",
        "0.745 [0.681, 0.802]",
        "+0.113 [+0.051, +0.171]",
        "-0.113 [-0.171, -0.051]",
        "31/39",
        "0.038",
        "0.022",
        "[low, high]: 90 %",
        "gnn: not available: repack with --attention [edges]",
        "Worse than lstm: logprob_mean.",
    ):
        assert words in text


def test_terminal_has_one_table_where_there_is_room_and_folds_nothing_where_not() -> None:
    long = replace(RESULTS, detectors={"charm_shuffled_edges": LSTM, **RESULTS.detectors})
    assert shown(long, 200).count("detector  ") == 2  # the other one is of controls
    narrow = shown(long, 80)
    rows = [line for line in narrow.splitlines() if line.startswith(" charm_shuffled_edges")]
    assert len(rows) == 5
    assert "0.813 [0.763, 0.864]" in rows[0]


def test_markdown_has_every_figure() -> None:
    text = markdown(RESULTS)
    rows = " ".join(line for line in text.splitlines() if line.startswith("| lstm "))
    for name, words in SHOWN.items():
        assert words in rows, name
    # Whoever adds a figure to the results has to say here how it is shown.
    elsewhere = {"difference_to_best", "errors", "n_unlabelled", "seeds"}
    assert set(SHOWN) | elsewhere == {field.name for field in fields(DetectorResult)}


def test_markdown() -> None:
    lines = markdown(RESULTS).splitlines()
    assert "- `gnn`: not available: repack with --attention [edges]" in lines
    assert "| test | 31 | 39 | 1 |" in lines
    headers = [place for place, line in enumerate(lines) if line.startswith("| detector")]
    assert len(headers) == 4
    for place in headers:
        counts = {line.count("|") for line in lines[place : place + 4]}
        assert len(counts) == 1
        assert lines[place + 4] == ""
    assert any("| -0.113 [-0.171, -0.051] | - |" in line for line in lines)


def against_best(low: float, high: float) -> DetectorResult:
    return replace(BASELINE, difference_to_best=Difference("lstm", (low + high) / 2, (low, high)))


def test_verdict_says_who_cannot_be_told_from_the_best() -> None:
    detectors = {
        "worse": against_best(-0.2, -0.1),
        "lstm": LSTM,
        "about": against_best(-0.1, 0.05),
        "touching": against_best(-0.1, 0.0),
        "same": against_best(0.0, 0.0),
        "better": against_best(0.01, 0.1),
    }
    sentences = verdict(replace(RESULTS, detectors=detectors))
    assert sentences == [
        "Best on validation: lstm (AUROC 0.829 there, 0.813 on test).",
        "Not significantly different from lstm at 90 % confidence (the interval of the difference "
        "contains 0): about, touching, same.",
        "Worse than lstm: worse.",
        "Better than lstm on test, but not on validation: better.",
        "The 5 intervals are not corrected for multiple comparisons.",
    ]
    assert " ".join(sentences) in markdown(replace(RESULTS, detectors=detectors))


def test_verdict_of_nothing_to_compare() -> None:
    assert verdict(Results({})) == []
    assert verdict(Results({"lstm": LSTM})) == []
    two = verdict(RESULTS)
    assert "at 90 % confidence (the interval of the difference contains 0): none." in two[1]
    assert len(two) == 3  # one interval needs no remark on many


def test_spread_over_seeds_is_told_from_the_interval() -> None:
    assert "over seeds" not in markdown(RESULTS)
    assert "over seeds" not in shown(RESULTS, 200)
    results = seeded(RESULTS)
    text = markdown(results)
    assert "| ±0.015 (0.796 to 0.829) |" in text
    assert "means over 3 trainings that differ only in their seed" in text
    assert "the variation between trainings on the same test samples" in text
    assert "the variation between test samples" in text
    assert "they do not depend on the seed: logprob_mean." in text
    assert "±0.015" in shown(results, 80)


def test_temperature_at_its_limit_is_said() -> None:
    assert "at its limit" not in markdown(RESULTS)
    limit = replace(RESULTS, detectors={"lstm": replace(LSTM, temperature=0.01)})
    assert "T at its limit (0.01 or 100)" in markdown(limit)


def test_cells_do_not_break_the_table() -> None:
    odd = replace(LSTM, chosen={"penalty": "a|b"})
    row = next(
        line
        for line in markdown(Results({"lstm": odd})).splitlines()
        if line.startswith("| lstm") and "penalty" in line
    )
    assert r"a\|b" in row


def test_no_detector_at_all() -> None:
    print_results(Results({}), Console(file=io.StringIO()))
    assert "# Detectors" in markdown(Results({}))


@pytest.mark.parametrize("results", [RESULTS, seeded(RESULTS), Results({}, config={})])
def test_results_come_back_from_their_file(results: Results, tmp_path: Path) -> None:
    write_json(tmp_path / "results.json", results.as_json())
    found = load_results(tmp_path)
    assert found == results
    assert list(found.detectors) == list(results.detectors)


def test_form_of_the_file(tmp_path: Path) -> None:
    write_json(tmp_path / "results.json", seeded(RESULTS).as_json())
    written = json.loads((tmp_path / "results.json").read_text())
    assert set(written) == {"verdict", "detectors", "not_available", "dataset", "config"}
    lstm = written["detectors"]["lstm"]
    assert (lstm["auroc"], lstm["auroc_interval"]) == (0.8126, [0.7631, 0.8642])
    assert lstm["seeds"] == {
        "n": 3,
        "auroc": {"mean": 0.8126, "std": 0.0147, "min": 0.7961, "max": 0.8287},
    }
    assert lstm["chosen"] == {"layer": 13, "token": "last_answer"}
    assert "difference_to_best" not in lstm


OLD = """{
 "config": {"confidence": 0.95, "detectors": ["lstm"], "seed": 0},
 "dataset": {"shards": "shards", "splits": {}},
 "detectors": {"lstm": {
  "accuracy": 0.7, "auprc": 0.6, "auroc": 0.8, "auroc_interval": [0.7, 0.9], "ece": 0.1,
  "difference_to_logprob_mean": {"difference": 0.1, "interval": [0.0, 0.2], "to": "logprob_mean"},
  "epochs": 3, "f1": 0.5, "fpr95": 0.6, "n_neg": 40, "n_pos": 30, "parameters": 9,
  "seconds_per_epoch": 0.5, "threshold": 0.4, "val_auroc": 0.75}},
 "not_available": {}
}"""


def test_files_of_before_are_read(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(OLD)
    result = load_results(tmp_path).detectors["lstm"]
    assert (result.auroc, result.auroc_interval, result.epochs) == (0.8, (0.7, 0.9), 3)
    assert result.difference_to_logprob_mean == Difference("logprob_mean", 0.1, (0.0, 0.2))
    for name in ("auprc_interval", "temperature", "ece_scaled", "n_unlabelled", "sign", "seeds"):
        assert getattr(result, name) is None
    assert result.chosen == {}
    assert "0.800 [0.700, 0.900]" in markdown(load_results(tmp_path))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"auroc": 0.8,', ""),
        ("[0.7, 0.9]", "[0.7]"),
        ('"f1": 0.5', '"f2": 0.5'),
        ('"epochs": 3', '"seeds": {"auroc": {}}'),
        ('"epochs": 3', '"seeds": {"n": 2, "auroc": {"mean": 1}}'),
    ],
)
def test_files_of_another_form_are_refused(old: str, new: str, tmp_path: Path) -> None:
    assert old in OLD
    (tmp_path / "results.json").write_text(OLD.replace(old, new, 1))
    with pytest.raises(DetectorError, match=r"is not a results\.json of this version"):
        load_results(tmp_path)
