"""The embedded model, its questions, and a small run of the demo."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pictures import draw_coarsely
from trials import FULL, full_only, trials

from wdsbench import jobs
from wdsbench.demo import DemoOptions
from wdsbench.demo.run import MODEL, QUESTIONS, run_demo
from wdsbench.detect.registry import TRACE_DETECTORS
from wdsbench.errors import DetectorError, PackError
from wdsbench.llm.questions import read_questions
from wdsbench.train import solvers

#: Settings of a short training.
SMALL: dict[str, Any] = {"epochs": 1, "hidden": 8, "resamples": 50}
#: Enough for both classes in every split; the metrics are meaningless at this size.
QUESTIONS_ASKED = trials(60, 120)


def small_demo(out: Path) -> DemoOptions:
    return DemoOptions(out=out, questions=QUESTIONS_ASKED)


def test_model_size_and_number_of_questions() -> None:
    assert (MODEL / "model.safetensors").stat().st_size <= 3_000_000
    questions = read_questions(QUESTIONS)
    assert len(questions) >= 6000
    assert all(question.references for question in questions)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "first"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SCREEN_TURNS", "MLP_TURNS"):
            patch.setattr(solvers, name, trials(1, getattr(solvers, name)))
        if not FULL:
            patch.setattr(jobs, "TrainJob", functools.partial(jobs.TrainJob, **SMALL))
        draw_coarsely(patch)
        run_demo(small_demo(out))
    return out


@pytest.mark.trials
def test_all_files_are_written(demo: Path) -> None:
    results = json.loads((demo / "results.json").read_text())
    # The questions have no contexts that answers could be similar to.
    assert set(results["detectors"]) == {*TRACE_DETECTORS, "text_control", "question_control"}
    assert results["verdict"] in ("adds", "leak", "none")
    assert results["dataset"]["splits"]["test"]["n"] > 0
    for place in ("traces_data/batch_0001.pkl.gz", "ground_truth_scores.csv", "shards/index.json"):
        assert (demo / place).exists()
    assert (demo / "trace.html").read_bytes().startswith(b"<!doctype html>")
    run_files = {path.name for path in (demo / "runs" / "demo").iterdir()}
    assert {"results.json", "metrics.jsonl", "roc.png", "curves.png", "checkpoints"} <= run_files


def test_a_second_run_repeats_no_stage(demo: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (demo / "shards").iterdir()}
    lines: list[str] = []
    run_demo(small_demo(demo), say=lines.append)
    *stages, total = lines
    names = ("extract", "score", "pack", "train", "view")
    assert stages == [f"{name}: finished before" for name in names]
    assert re.fullmatch(r"all: \d\.\d s", total)
    assert {path: path.stat().st_mtime_ns for path in (demo / "shards").iterdir()} == before


def test_other_settings_restart(tmp_path: Path) -> None:
    lines: list[str] = []
    for questions in (4, 5):
        with pytest.raises(DetectorError, match="but needs both classes"):  # these are too few
            run_demo(DemoOptions(out=tmp_path, questions=questions), say=lines.append)
    names = [line.split(":")[0] for line in lines]
    assert names == ["extract", "score", "pack"] * 2
    for line, questions in ((lines[0], 4), (lines[3], 5)):
        assert re.fullmatch(rf"extract: {questions} answers, \d+ tokens, \d+\.\d s", line)


@full_only
def test_equal_seeds_give_equal_results(demo: Path, tmp_path: Path) -> None:
    again = run_demo(small_demo(tmp_path)).results.as_json()["detectors"]
    first = json.loads((demo / "results.json").read_text())["detectors"]
    assert again.keys() == first.keys()
    for name, figures in first.items():
        assert again[name]["auroc"] == pytest.approx(figures["auroc"], abs=1e-3)
        assert again[name]["auroc_interval"] == pytest.approx(figures["auroc_interval"], abs=1e-3)


def test_a_folder_that_is_not_a_demo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(PackError, match="not empty and not a demo"):
        run_demo(small_demo(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
