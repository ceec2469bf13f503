"""The main job on the embedded model: extract, score, pack, train, view; or on images.

Each stage calls the function of a command, so this file also shows how they fit together. A stage
is not repeated if its output is complete for the same settings: ``demo.json`` stores the settings
and the names of the finished stages.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wdsbench
from wdsbench import jobs
from wdsbench.demo import DemoOptions
from wdsbench.demo.scenes import write_scenes
from wdsbench.errors import PackError
from wdsbench.files import atomic_file, write_whole
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.names import split_of_question
from wdsbench.traces.scores import SCORES_NAME
from wdsbench.train.output import result_files
from wdsbench.train.results import RESULTS_NAME, Results, load_results

HOME = Path(__file__).parent
MODEL = HOME / "model"
QUESTIONS = HOME / "questions.jsonl.gz"

STATE_NAME = "demo.json"
TRACES_NAME = "traces_data"
SHARDS_NAME = "shards"
RUNS_NAME = "runs"
PAGE_NAME = "trace.html"
SCENES_NAME = "scenes"
LABELS_NAME = "labels.csv"
MAPS_NAME = "maps"

#: The embedded model answers in one to three words and a full stop.
MAX_NEW_TOKENS = 8

#: Scenes, and pixels of a side of a scene and of a patch.
SCENES, SCENE_PIXELS, PATCH_PIXELS = 32, 384, 32
IMAGE_EPOCHS = 10
#: Scenes with anomalies, outside the training split, for which maps are drawn.
MAPPED = 3

_RUN_FILES = {
    "results.json": "all metrics of the run",
    "report.md": "the table in Markdown",
    "scores.csv": "every detector's score of every test answer",
    "metrics.jsonl": "loss and AUROC of every epoch",
    "roc.png": "ROC curves",
    "curves.png": "loss and AUROC over epochs",
    "reliability.png": "predicted probabilities against observed rates",
    "errors.png": "reconstruction errors and the threshold",
    "checkpoints": "the detectors, for wdsbench predict",
}


@dataclass(frozen=True)
class DemoOutcome:
    """Results, and (path, description) of every output."""

    results: Results
    files: list[tuple[Path, str]]


class _Stages:
    """Stages in order; after the first one that is not finished, all are run."""

    def __init__(self, out: Path, settings: dict[str, Any], say: Callable[[str], None]) -> None:
        self._path = out / STATE_NAME
        self._settings = settings
        self._say = say
        self._done: list[str] = []
        if self._path.exists():
            state = json.loads(self._path.read_bytes())
            if state["settings"] == settings:
                self._done = state["done"]

    def run(self, name: str, outputs: list[Path], work: Callable[[], str]) -> None:
        """Run a stage unless it is finished and its outputs exist; ``work`` returns a summary."""
        if name in self._done and all(path.exists() for path in outputs):
            self._say(f"{name}: finished before")
            return
        if name in self._done:
            del self._done[self._done.index(name) :]
        self._save()
        for path in outputs:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        started = time.perf_counter()
        summary = work()
        self._done.append(name)
        self._save()
        self._say(f"{name}: {summary}, {time.perf_counter() - started:.1f} s")

    def _save(self) -> None:
        state = {"settings": self._settings, "done": self._done}
        with atomic_file(self._path) as file:
            file.write(json.dumps(state, indent=1, sort_keys=True).encode() + b"\n")


def run_demo(
    options: DemoOptions,
    *,
    say: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> DemoOutcome:
    """Run the main job into ``options.out`` and return its results.

    ``say`` is called with one line after every stage: its result and seconds. Only files of a demo
    are removed from the folder.

    Raises:
        PackError: The folder holds something that is not a demo.
    """
    out = options.out
    if out.exists() and not (out / STATE_NAME).exists() and any(out.iterdir()):
        raise PackError(f"{out} is not empty and not a demo; choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        (out / STATE_NAME).unlink(missing_ok=True)
    version = wdsbench.__version__
    what = {"scenes": SCENES} if options.images else {"questions": options.questions}
    settings = {**what, "seed": options.seed, "wdsbench": version}
    started = time.perf_counter()
    stages = _Stages(out, settings, say)
    of_demo = _image_stages if options.images else _trace_stages
    for name, outputs, work in of_demo(options, progress):
        stages.run(name, outputs, work)
    say(f"all: {time.perf_counter() - started:.1f} s")
    run, top = out / RUNS_NAME / "demo", out / RESULTS_NAME
    before = [
        (out / TRACES_NAME, "raw traces, as wdsbench extract writes them"),
        (out / SCORES_NAME, "the score of every answer"),
    ]
    after = [(out / PAGE_NAME, "one trace: attention, norms and a detector's scores, in a browser")]
    if options.images:
        before = [
            (out / SCENES_NAME, "multispectral TIFF images, half of them with anomalies"),
            (out / LABELS_NAME, "the label of every tile"),
        ]
        after = [(out / MAPS_NAME, "maps, masks and overlays of scenes that were not trained on")]
    files = [
        *before,
        (out / SHARDS_NAME, "the data set: tar shards and index"),
        *((path, _RUN_FILES[path.name]) for path in result_files(run)),
        *after,
        (top, "copy of the metrics"),
    ]
    return DemoOutcome(load_results(top), files)


#: Name, outputs and work of a stage.
_Stage = tuple[str, list[Path], Callable[[], str]]


def _image_stages(options: DemoOptions, progress: Progress) -> list[_Stage]:
    out = options.out
    scenes, labels, shards = out / SCENES_NAME, out / LABELS_NAME, out / SHARDS_NAME
    run, top, maps = out / RUNS_NAME / "demo", out / RESULTS_NAME, out / MAPS_NAME

    def is_held_out(name: str) -> bool:
        return split_of_question(name) != "train"

    def do_scenes() -> str:
        write_scenes(scenes, labels, SCENES, SCENE_PIXELS, PATCH_PIXELS, options.seed)
        return f"{SCENES} images"

    def do_pack() -> str:
        job = jobs.PackJob(
            images=str(scenes),
            out=shards,
            labels=labels,
            tile=True,
            patch_size=PATCH_PIXELS,
            value_range="channel",
        )
        report = jobs.pack(job, progress=progress)
        return f"{report.samples} patches, {report.bytes_written / 1e6:.0f} MB of shards"

    def do_train() -> str:
        job = jobs.TrainJob(
            shards=shards,
            detectors=("all",),
            out=run,
            seed=options.seed,
            epochs=IMAGE_EPOCHS,
            batch_size=32,
        )
        results = jobs.train(job, progress=progress)
        write_whole(top, (run / RESULTS_NAME).read_bytes())
        return f"{len(results.detectors)} detectors"

    def do_predict() -> str:
        other = [path for path in sorted(scenes.iterdir())[1::2] if is_held_out(path.name)]
        job = jobs.PredictJob(
            checkpoint=run / "checkpoints" / "pca",
            sources=tuple(str(path) for path in other[:MAPPED]),
            out=maps,
        )
        return f"maps of {len(jobs.predict_images(job, progress=progress).images)} images"

    return [
        ("scenes", [scenes, labels], do_scenes),
        ("pack", [shards], do_pack),
        ("train", [run, top], do_train),
        ("predict", [maps], do_predict),
    ]


def _trace_stages(options: DemoOptions, progress: Progress) -> list[_Stage]:
    out = options.out
    traces, scores, shards = out / TRACES_NAME, out / SCORES_NAME, out / SHARDS_NAME
    run, top, page = out / RUNS_NAME / "demo", out / RESULTS_NAME, out / PAGE_NAME
    pattern = (str(traces / "*.pkl*"),)

    def do_extract() -> str:
        job = jobs.ExtractJob(
            model=str(MODEL),
            questions=str(QUESTIONS),
            limit=options.questions,
            out=traces,
            batch_size=64,
            max_new_tokens=MAX_NEW_TOKENS,
            journal=False,
        )
        report = jobs.extract(job, progress=progress).report
        return f"{report.traces} answers, {report.tokens} tokens"

    def do_score() -> str:
        job = jobs.ScoreJob(traces=pattern, questions=str(QUESTIONS), out=scores)
        report = jobs.score(job, progress=progress)
        return f"{report.scored} answers, {1 - report.exact_match:.1%} wrong"

    def do_pack() -> str:
        job = jobs.PackJob(
            traces=pattern,
            out=shards,
            scores=scores,
            score_column="exact_match",
            attention=("edges", "heads", "sketch"),
        )
        report = jobs.pack(job, progress=progress)
        return f"{report.samples} samples, {report.bytes_written / 1e6:.0f} MB of shards"

    def do_train() -> str:
        # No detector improves on these questions after three epochs without a better one.
        job = jobs.TrainJob(
            shards=shards, detectors=("all",), out=run, seed=options.seed, patience=3
        )
        results = jobs.train(job, progress=progress)
        write_whole(top, (run / RESULTS_NAME).read_bytes())
        return f"{len(results.detectors)} detectors"

    def do_view() -> str:
        checkpoint = run / "checkpoints" / "lstm"
        drawn = jobs.view(jobs.ViewJob(path=str(shards), out=page, scores=checkpoint))
        return f"trace {drawn.trace}"

    return [
        ("extract", [traces], do_extract),
        ("score", [scores], do_score),
        ("pack", [shards], do_pack),
        ("train", [run, top], do_train),
        ("view", [page], do_view),
    ]
