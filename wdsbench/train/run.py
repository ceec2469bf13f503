"""One run: every detector fitted and measured on the same splits of one data set, and written down.

    results.json    figures of all detectors        scores.csv      test scores per sample
    metrics.jsonl   one line per epoch              report.md       the table
    roc.png         ROC curves                      curves.png      loss and AUROC per epoch
    reliability.png what probabilities promise      state/NAME/     unfinished fits, see --resume
    checkpoints/NAME/   each detector, ready to score other traces

Whatever is chosen (epoch, layer, sign, threshold, which detector counts as best) is chosen on
validation; the test split is read once per detector, at its end.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wdsbench.detect.registry import DETECTOR_NAMES, DetectorSpec, LoaderNeeds, detector_spec
from wdsbench.errors import DetectorError, StoppedError
from wdsbench.files import remove_if_empty, write_whole
from wdsbench.progress import Progress, no_progress
from wdsbench.records import SPLITS
from wdsbench.train.checkpoint import remove_detector
from wdsbench.train.config import FREE_ON_RESUME, TrainConfig
from wdsbench.train.device import choose_device
from wdsbench.train.fitting import (
    CHECKPOINTS_NAME,
    STATES_NAME,
    Run,
    fit_setting,
    labels_digest,
    run_detector,
)
from wdsbench.train.keeper import StopSwitch
from wdsbench.train.log import METRICS_NAME, TENSORBOARD_NAME, MetricsLog
from wdsbench.train.measure import Outcome, measure, reliability_curves
from wdsbench.train.plots import RocCurve, plot_reliability, plot_roc, plot_training
from wdsbench.train.ranks import Ranks, open_ranks, rank_device
from wdsbench.train.report import write_markdown
from wdsbench.train.results import RESULTS_NAME, Results, load_results, write_results
from wdsbench.train.source import (
    Examples,
    OpenLoader,
    Source,
    default_open_loader,
    joined_examples,
    read_examples,
)
from wdsbench.train.state import load_state, remove_state, require_same

SCORES_NAME = "scores.csv"
REPORT_NAME = "report.md"
ROC_NAME = "roc.png"
CURVES_NAME = "curves.png"
RELIABILITY_NAME = "reliability.png"
_FILE_NAMES = (
    RESULTS_NAME,
    REPORT_NAME,
    SCORES_NAME,
    METRICS_NAME,
    ROC_NAME,
    CURVES_NAME,
    RELIABILITY_NAME,
)


@dataclass(frozen=True)
class Searched:
    """Settings of one detector that a search has found.

    Attributes:
        settings: Fields of `TrainConfig` and their values.
        trials: How many settings were tried.
        val_auroc: What these reached on validation.
    """

    settings: Mapping[str, Any]
    trials: int
    val_auroc: float


def train(
    shards: str | Path,
    detectors: Sequence[str],
    out: str | Path,
    config: TrainConfig | None = None,
    progress: Progress = no_progress,
    open_loader: OpenLoader | None = None,
    *,
    resume: bool = False,
    searched: Mapping[str, Searched] | None = None,
) -> Results:
    """Fit and evaluate ``detectors`` on the data set ``shards``, write everything into ``out`` and
    return the figures.

    Under `torchrun` every rank calls this alike; all return the same, the first one writes.

    Args:
        shards: What the loader opens.
        detectors: Names of the registry.
        out: Folder, made if need be; files of an earlier run in it are replaced.
        config: Settings; None: the defaults.
        progress: Draws bars.
        open_loader: The loader's constructor; None: the project's own.
        resume: Go on where an earlier run in ``out`` was stopped or killed; where there is none,
            begin.
        searched: By detector, settings that take the place of those in ``config``; they stand in
            the results under ``config["search"]``.

    Raises:
        ValueError: An unknown detector, or none; a device that is not there; settings for a
            detector that is not trained.
        DetectorError: A split lacks a class, no detector at all could be run (``results.json``
            then says why), or the earlier run had other settings.
        StoppedError: A signal (SIGINT, SIGTERM) asked for the end; the state is saved.
        RankError: Another rank is gone.
    """
    specs = [detector_spec(name) for name in dict.fromkeys(detectors)]
    if not specs:
        raise ValueError("no detector was asked for")
    config = config or TrainConfig()
    searched = dict(searched or {})
    if others := searched.keys() - {spec.name for spec in specs}:
        raise ValueError(
            f"settings were searched for {', '.join(sorted(others))}; it must be one of the"
            f" detectors asked for: {', '.join(spec.name for spec in specs)}"
        )
    device = choose_device(rank_device(config.device))
    switch = StopSwitch(waits=False)
    with (
        open_ranks(device, config.rank_timeout_seconds) as ranks,
        switch.listening(),
        determinism(config.deterministic),
    ):
        source = Source(shards, config, device, open_loader or default_open_loader())
        job = _Job(specs, source, Path(out), ranks, switch, resume, searched)
        return job.run(progress if ranks.is_first else no_progress)


@dataclass(frozen=True)
class _Job:
    """One call of `train` on one rank."""

    specs: list[DetectorSpec]
    source: Source
    out: Path
    ranks: Ranks
    switch: StopSwitch
    resume: bool
    searched: Mapping[str, Searched] = field(default_factory=dict)

    def run(self, progress: Progress) -> Results:
        examples, index = read_splits(self.source, self.ranks, SPLITS)
        settings: dict[str, Any] = {
            **self.source.config.as_json(),
            "device": self.source.device,
            "ranks": self.ranks.count,
            "detectors": [spec.name for spec in self.specs],
        }
        if self.searched:
            settings["search"] = {name: asdict(found) for name, found in self.searched.items()}
        if self.resume:
            ended = _ended(self.out, settings, labels_digest(index))
            if ended is not None:
                return ended
            self._require_states(index)  # before anything of the earlier run is removed
        if self.ranks.is_first:
            self.out.mkdir(parents=True, exist_ok=True)
            remove_earlier(self.out, states=not self.resume)
        self.ranks.gather(None)  # nobody writes before that is done
        outcomes: dict[str, Outcome] = {}
        not_available: dict[str, str] = {}
        folder = self.out if self.ranks.is_first else None
        with MetricsLog(folder, tensorboard=self.source.config.tensorboard) as log:
            run = Run(
                source=self.source,
                examples=examples,
                index=index,
                out=self.out,
                log=log,
                progress=progress,
                ranks=self.ranks,
                switch=self.switch,
                resume=self.resume,
            )
            for spec in self.specs:
                try:
                    outcomes[spec.name] = run_detector(spec, run.with_config(self._config(spec)))
                except DetectorError as error:
                    not_available[spec.name] = str(error)
                # Most signals do not get here: what the handler raises is lost in a finaliser.
                if any(self.ranks.gather(self.switch.asked)):
                    raise StoppedError(
                        f"stopped by a signal after {spec.name}; go on with --resume"
                    )
        results = Results(
            detectors=measure(outcomes, examples, self.source.config),
            not_available=not_available,
            dataset=_dataset(self.source.shards, examples, index),
            config=settings,
        )
        if self.ranks.is_first:
            _write(results, outcomes, examples, self.out)
            _remove_states(self.out)
        if not outcomes:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in not_available.items())
            raise DetectorError(f"none of the detectors could be run: {reasons}")
        return results

    def _require_states(self, index: Any) -> None:
        """Check that all ranks can go on from what is saved.

        Raises:
            DetectorError: It is damaged, of other settings, or not the same for all ranks.
        """
        found = self.ranks.together(partial(self._states, index))
        if any(other != found[0] for other in found):
            raise DetectorError(
                f"{self.out}: the ranks find different saved states; --out must be one folder that"
                " all of them see"
            )

    def _states(self, index: Any) -> dict[str, Any]:
        """Return how far each saved fit has come, as this rank sees it."""
        found: dict[str, Any] = {}
        for spec in self.specs:
            folder = self.out / STATES_NAME / spec.name
            state = load_state(folder)
            if state is not None:
                then = {name: value for name, value in state.setting.items() if name != "shape"}
                now = fit_setting(spec.name, self._config(spec), self.ranks, index)
                require_same(then, now, folder)
                found[spec.name] = state.progress
        return found

    def _config(self, spec: DetectorSpec) -> TrainConfig:
        """Return the settings of one detector."""
        found = self.searched.get(spec.name)
        config = self.source.config
        return config if found is None else dataclasses.replace(config, **found.settings)


def read_splits(
    source: Source, ranks: Ranks, splits: Sequence[str]
) -> tuple[dict[str, Examples], Any]:
    """Return what is known of the samples of all ranks, by split, and the loader's index.

    Raises:
        DetectorError: A key occurs twice, a label is neither 0, 1 nor unknown, a question stands in
            two splits, or a split lacks a class.
    """
    examples: dict[str, Examples] = {}
    index: Any = None
    for split in splits:
        with source.batches(split, LoaderNeeds()) as batches:
            parts = ranks.together(partial(read_examples, batches))
            examples[split] = joined_examples(parts)
            index = getattr(batches, "index", None)
    _require_own_questions(examples)
    _require_both_classes(examples)
    return examples, index


def _ended(out: Path, settings: dict[str, Any], table: str | None) -> Results | None:
    """Return the results of a run that ended; None where it did not, or there is none.

    ``table``: what names the data (see `labels_digest`).

    Raises:
        DetectorError: It ended with other settings, or on other data.
    """
    if not (out / RESULTS_NAME).exists() or (out / STATES_NAME).exists():
        return None
    results = load_results(out)
    for name in sorted({*settings, *results.config} - FREE_ON_RESUME):
        if settings.get(name) != results.config.get(name):
            raise DetectorError(
                f"{out}: the run there has ended with {name} {results.config.get(name)!r}, and"
                f" {settings.get(name)!r} is asked for; choose another --out, or leave --resume out"
            )
    then = results.dataset.get("table")
    if then != table:
        raise DetectorError(
            f"{out}: the run there has ended on other data (table {then}, now {table}): other"
            " shards, or other labels; choose another --out, or leave --resume out"
        )
    return results


def result_files(out: str | Path) -> list[Path]:
    """Return the files and folders a run has left in ``out``, the results first."""
    places = [Path(out) / name for name in (*_FILE_NAMES, CHECKPOINTS_NAME)]
    return [place for place in places if place.exists()]


@contextlib.contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """Let torch refuse operators whose results differ between runs."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    # cuBLAS is deterministic with a workspace of fixed size alone (its documentation, 2.1.4).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def remove_earlier(folder: Path, *, states: bool) -> None:
    """Remove what an earlier run left, the results first; files of no run stay."""
    for name in _FILE_NAMES:
        (folder / name).unlink(missing_ok=True)
    for name in DETECTOR_NAMES:
        remove_detector(folder / CHECKPOINTS_NAME / name)
    remove_if_empty(folder / CHECKPOINTS_NAME)
    # What logs of TensorBoard there are belong to an earlier run: it would draw both into one.
    shutil.rmtree(folder / TENSORBOARD_NAME, ignore_errors=True)
    if states:
        _remove_states(folder)


def _remove_states(folder: Path) -> None:
    for name in DETECTOR_NAMES:
        remove_state(folder / STATES_NAME / name)
    remove_if_empty(folder / STATES_NAME)


def _require_own_questions(examples: dict[str, Examples]) -> None:
    """Refuse splits that share a question: what is learnt in one would be known in the other."""
    split_of: dict[str, str] = {}
    for split, found in examples.items():
        for question_id in set(found.question_ids):
            other = split_of.setdefault(question_id, split)
            if other != split:
                raise DetectorError(
                    f"question {question_id} stands in the splits {other} and {split}: pack again"
                    " with --split-by question"
                )


def _require_both_classes(examples: dict[str, Examples]) -> None:
    for split, found in examples.items():
        counts = found.counts()
        if counts["n_pos"] == 0 or counts["n_neg"] == 0:
            raise DetectorError(
                f"split {split} has {counts['n_pos']} hallucinated, {counts['n_neg']} right, "
                f"{counts['n_unlabelled']} unlabelled samples, but needs both classes: "
                "pack more traces, or pack again with another --threshold"
            )


def _dataset(shards: str | Path, examples: dict[str, Examples], index: Any) -> dict[str, Any]:
    labels = getattr(index, "labels", None)
    return {
        "shards": str(shards),
        "splits": {split: found.counts() for split, found in examples.items()},
        "num_layers": getattr(index, "num_layers", None),
        "num_features": getattr(index, "num_features", None),
        # What decides the labels: where they come from, and the table that holds them.
        "labels": None if labels is None else labels.model_dump(),
        "table": labels_digest(index),
    }


def _write(
    results: Results, outcomes: dict[str, Outcome], examples: dict[str, Examples], folder: Path
) -> None:
    test = examples["test"]
    write_whole(folder / SCORES_NAME, _scores_csv(outcomes, test).encode())
    write_markdown(results, folder / REPORT_NAME)
    curves = [
        RocCurve(name, outcomes[name].test_scores[test.known], result.auroc, result.auroc_interval)
        for name, result in results.detectors.items()
    ]
    if curves:
        plot_roc(folder / ROC_NAME, test.known_labels, curves)
    reliability = reliability_curves(outcomes, results.detectors, examples)
    if reliability:
        plot_reliability(folder / RELIABILITY_NAME, reliability)
    lines = (folder / METRICS_NAME).read_text(encoding="utf-8").splitlines()
    if lines:
        plot_training(folder / CURVES_NAME, [json.loads(line) for line in lines])
    # Last: who finds a results.json finds everything else too.
    write_results(results, folder / RESULTS_NAME)


def _scores_csv(outcomes: dict[str, Outcome], test: Examples) -> str:
    """Return test scores per sample as CSV; more means hallucinated, unknown labels are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["question_id", "key", "label", *outcomes])
    for place, (question_id, key) in enumerate(zip(test.question_ids, test.keys, strict=True)):
        label = test.labels[place]
        scores = [f"{outcome.test_scores[place]:.17g}" for outcome in outcomes.values()]
        writer.writerow([question_id, key, "" if np.isnan(label) else int(label), *scores])
    return text.getvalue()
