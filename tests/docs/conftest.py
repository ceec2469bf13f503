"""A folder in which every block of the documentation and every example can run."""

from __future__ import annotations

import contextlib
import gzip
import shlex
from pathlib import Path

import pytest
from cli.runner import run
from image_files import random_pixels, write_tiff
from trials import FULL, trials

import wdsbench.demo

DEMO = Path(wdsbench.demo.__file__).parent
QUESTIONS = trials(64, 96)
MORE_QUESTIONS = 16
#: As the documentation does it, on few questions; ``new.csv`` is another score file.
PREPARE = (
    "extract --model ./my-model --questions questions.jsonl --out traces_data/ --batch-size 32"
    " --max-new-tokens 8 --traces-per-file 48",
    "score --traces 'traces_data/*.pkl*' --questions questions.jsonl",
    "pack --traces 'traces_data/*.pkl*' --scores ground_truth_scores.csv --out shards/"
    " --score-column exact_match --attention edges,heads,sketch",
)
#: For blocks of commands that run in `make test-faults` alone.
PREPARE_MORE = (
    "extract --model ./my-model --questions more_questions.jsonl --out more_traces/"
    " --max-new-tokens 8",
    "score --traces 'more_traces/*.pkl*' --questions more_questions.jsonl --out more_scores.csv",
    "train shards/ --detector lstm --epochs 1 --out runs/lstm",
    "pack --images scenes/ --out patches/ --patch-size 32",
    "pack --images scenes/ --out tiles/ --patch-size 32 --tile",
)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, questions, traces, scores, a data set, a run and images."""
    folder = tmp_path_factory.mktemp("documentation")
    (folder / "my-model").symlink_to(DEMO / "model")
    with gzip.open(DEMO / "questions.jsonl.gz", "rt", encoding="utf-8") as file:
        for name, count in (("questions", QUESTIONS), ("more_questions", MORE_QUESTIONS)):
            lines = [next(file) for _ in range(count)]
            (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    for number in range(12):
        name = f"scenes/{'crack' if number % 3 == 1 else 'normal'}/{number}.tif"
        write_tiff(folder / name, random_pixels(60, 80, seed=number), compression="deflate")
    (folder / "examples.txt").write_text("Q: Where is Rome?\nA: in Italy\n\n", encoding="utf-8")
    with contextlib.chdir(folder):
        for line in (*PREPARE, *(PREPARE_MORE if FULL else ())):
            assert run(*shlex.split(line)) == 0, line
    (folder / "new.csv").write_bytes((folder / "ground_truth_scores.csv").read_bytes())
    return folder
