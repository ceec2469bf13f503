"""The embedded model, its questions, and the main job over them at a small size."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from wdsbench.demo.options import DemoOptions
from wdsbench.demo.run import DETECTORS, MODEL, QUESTIONS, run_demo
from wdsbench.errors import DetectorError, PackError
from wdsbench.llm.questions import read_questions

#: Enough for both classes in every split; the figures themselves mean nothing at this size.
QUESTIONS_ASKED = 120


def few(out: Path) -> DemoOptions:
    return DemoOptions(out=out, questions=QUESTIONS_ASKED)


def test_the_model_is_small_and_the_questions_are_many() -> None:
    assert (MODEL / "model.safetensors").stat().st_size <= 3_000_000
    questions = read_questions(QUESTIONS)
    assert len(questions) >= 6000
    assert all(question.references for question in questions)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "first"
    run_demo(few(out))
    return out


def test_everything_is_there(demo: Path) -> None:
    results = json.loads((demo / "results.json").read_text())
    assert set(results["detectors"]) == set(DETECTORS)
    assert results["dataset"]["splits"]["test"]["n"] > 0
    for place in ("traces_data/batch_0001.pkl.gz", "ground_truth_scores.csv", "shards/index.json"):
        assert (demo / place).exists()
    assert (demo / "trace.html").read_bytes().startswith(b"<!DOCTYPE html>")
    run_files = {path.name for path in (demo / "runs" / "demo").iterdir()}
    assert {"results.json", "metrics.jsonl", "roc.png", "curves.png", "checkpoints"} <= run_files


def test_a_second_run_reuses_what_is_there(demo: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (demo / "shards").iterdir()}
    lines: list[str] = []
    run_demo(few(demo), say=lines.append)
    *stages, total = lines
    names = ("extract", "score", "pack", "train", "view")
    assert stages == [f"{name}: finished before" for name in names]
    assert re.fullmatch(r"all: \d\.\d s", total)
    assert {path: path.stat().st_mtime_ns for path in (demo / "shards").iterdir()} == before


def test_other_settings_start_anew_and_the_same_seed_gives_the_same_numbers(
    demo: Path, tmp_path: Path
) -> None:
    """One run for both: it takes as long as all other tests here together."""
    lines: list[str] = []
    with pytest.raises(DetectorError, match="but needs both classes"):  # of ten, some split lacks
        run_demo(DemoOptions(out=tmp_path, questions=10), say=lines.append)
    assert len(lines) == 3
    found = run_demo(few(tmp_path), say=lines.append)
    assert len(lines) == 9
    assert re.fullmatch(r"extract: 120 answers, \d+ tokens, \d+\.\d s", lines[3])
    again = found.results.as_json()["detectors"]
    first = json.loads((demo / "results.json").read_text())["detectors"]
    assert again.keys() == first.keys()
    for name, figures in first.items():
        assert again[name]["auroc"] == pytest.approx(figures["auroc"], abs=1e-3)
        assert again[name]["auroc_interval"] == pytest.approx(figures["auroc_interval"], abs=1e-3)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(PackError, match="not empty and not a demo"):
        run_demo(few(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
