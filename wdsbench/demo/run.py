"""The main job on the embedded model: extract, score, pack, train, report.

Each stage is the function behind a command, so the demo is also the shortest description of how
they fit together. A stage whose output is complete for the same settings is not repeated:
``demo.json`` keeps the settings and names the stages that have ended.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import wdsbench
from wdsbench.detect.registry import DETECTOR_NAMES
from wdsbench.errors import PackError
from wdsbench.files import atomic_file
from wdsbench.llm.extract import extract
from wdsbench.llm.model import load_model
from wdsbench.llm.questions import read_questions
from wdsbench.llm.score import score_traces
from wdsbench.pack import PackOptions, pack
from wdsbench.progress import Progress, no_progress
from wdsbench.traces.scores import SCORES_NAME
from wdsbench.train.config import TrainConfig
from wdsbench.train.results import RESULTS_NAME, Results, load_results
from wdsbench.train.run import result_files, train

HOME = Path(__file__).parent
MODEL = HOME / "model"
QUESTIONS = HOME / "questions.jsonl.gz"

STATE_NAME = "demo.json"
TRACES_NAME = "traces_data"
SHARDS_NAME = "shards"
RUNS_NAME = "runs"

#: What the demo compares: everything there is.
DETECTORS = DETECTOR_NAMES

#: Answers of the embedded model are one to three words and a full stop.
MAX_NEW_TOKENS = 8

_RUN_FILES = {
    "results.json": "all figures of the run",
    "report.md": "the table, to paste",
    "scores.csv": "every detector's score of every test answer",
    "metrics.jsonl": "loss and AUROC of every epoch",
    "roc.png": "ROC curves",
    "curves.png": "loss and AUROC over epochs",
    "reliability.png": "what probabilities promise, and what came",
    "checkpoints": "the detectors, ready to score other traces",
}


@dataclass(frozen=True)
class DemoOptions:
    """Settings of a demo run.

    Attributes:
        questions: How many of the embedded questions are asked.
        seed: Of training.
        fresh: Repeat every stage.
    """

    questions: int = 6400
    seed: int = 0
    fresh: bool = False


@dataclass(frozen=True)
class DemoOutcome:
    """Results, and (path, what it is) of everything made."""

    results: Results
    files: list[tuple[Path, str]]


class _Stages:
    """Runs stages in order; from the first that is not done on, all are run."""

    def __init__(self, out: Path, settings: dict[str, Any], say: Callable[[str], None]) -> None:
        self._path = out / STATE_NAME
        self._settings = settings
        self._say = say
        self._done: list[str] = []
        if self._path.exists():
            state = json.loads(self._path.read_text(encoding="utf-8"))
            if state["settings"] == settings:
                self._done = list(state["done"])

    def run(self, name: str, outputs: list[Path], work: Callable[[], str]) -> None:
        """Run a stage unless it is done and its outputs are there; ``work`` returns a summary."""
        if name in self._done and all(path.exists() for path in outputs):
            self._say(f"{name}: done before")
            return
        self._done = self._done[: self._done.index(name)] if name in self._done else self._done
        self._save()
        for path in outputs:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        summary = work()
        self._done.append(name)
        self._save()
        self._say(f"{name}: {summary}")

    def _save(self) -> None:
        state = {"settings": self._settings, "done": self._done}
        with atomic_file(self._path) as file:
            file.write(json.dumps(state, indent=1, sort_keys=True).encode() + b"\n")


def run_demo(
    out: Path,
    options: DemoOptions | None = None,
    *,
    say: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> DemoOutcome:
    """Run the main job into ``out`` and return its results.

    Args:
        out: Made where it does not exist; only what a demo made is ever removed from it.
        options: See :class:`DemoOptions`.
        say: Takes one line after every stage.
        progress: Draws bars.

    Raises:
        PackError: ``out`` holds something that is not a demo.
    """
    options = options or DemoOptions()
    if out.exists() and not (out / STATE_NAME).exists() and any(out.iterdir()):
        raise PackError(f"{out} is not empty and not a demo; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        (out / STATE_NAME).unlink(missing_ok=True)
    settings = {**asdict(options), "wdsbench": wdsbench.__version__}
    del settings["fresh"]
    stages = _Stages(out, settings, say)
    questions = read_questions(QUESTIONS, options.questions)
    traces, scores, shards = out / TRACES_NAME, out / SCORES_NAME, out / SHARDS_NAME
    run, top = out / RUNS_NAME / "demo", out / RESULTS_NAME
    pattern = [str(traces / "*.pkl*")]

    def do_extract() -> str:
        model, tokenizer = load_model(MODEL)
        report = extract(
            model,
            tokenizer,
            questions,
            traces,
            batch_size=64,
            max_new_tokens=MAX_NEW_TOKENS,
            progress=progress,
        )
        return f"{report.traces} answers, {report.tokens} tokens"

    def do_score() -> str:
        report = score_traces(pattern, questions, scores, progress)
        return f"{report.scored} answers, {1 - report.exact_match:.1%} wrong"

    def do_pack() -> str:
        packing = PackOptions(score_column="exact_match", attention=("edges", "heads", "sketch"))
        report = pack(pattern, shards, scores=scores, options=packing, progress=progress)
        return f"{report.samples} samples, {report.bytes_written / 1e6:.0f} MB of shards"

    def do_train() -> str:
        config = TrainConfig(seed=options.seed)
        results = train(shards, DETECTORS, run, config, progress)
        with atomic_file(top) as file:
            file.write((run / RESULTS_NAME).read_bytes())
        return f"{len(results.detectors)} detectors"

    stages.run("extract", [traces], do_extract)
    stages.run("score", [scores], do_score)
    stages.run("pack", [shards], do_pack)
    stages.run("train", [run, top], do_train)
    files = [
        (traces, "raw traces, as wdsbench extract writes them"),
        (scores, "how right every answer was"),
        (shards, "the data set: tar shards and index"),
        *((path, _RUN_FILES[path.name]) for path in result_files(run)),
        (top, "the same figures, at the top"),
    ]
    return DemoOutcome(load_results(top), files)
