"""Scores of a data set by a fitted detector: one line per sample out.

The data set must fit the detector: the same layers, features, heads and reduction of states, or the
same channels and size of patches.
Samples are sorted by (question id, trace number, key), so that two files of the same samples can be
compared line by line.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.detect.registry import CONTROLS, LoaderNeeds
from wdsbench.errors import DetectorError
from wdsbench.files import write_whole
from wdsbench.loader.loader import TraceLoader
from wdsbench.progress import Progress, no_progress
from wdsbench.records import SPLITS
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.train import metrics
from wdsbench.train.checkpoint import CARD_NAME, load_detector
from wdsbench.train.config import SPLIT_CHOICES, PredictOptions, TrainConfig
from wdsbench.train.examples import read_examples
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.ranks import choose_device
from wdsbench.train.source import OpenLoader, Source, require_members


@dataclass(frozen=True)
class Prediction:
    """Prediction of a detector for one sample.

    Attributes:
        trace: Number among the question's traces; None if the table has none.
        label: 1 hallucinated, 0 right; None: unknown.
        score: As in a training run's ``scores.csv``: more means hallucinated, or anomalous.
        probability: Of being hallucinated, after temperature scaling where one was fitted; None for
            closed forms.
        hallucinated: True if the score reaches the threshold, or an error is above it; None if
            there is no threshold. The column of errors is named ``above_threshold``.
    """

    question_id: str
    key: str
    trace: int | None
    split: str
    label: int | None
    score: float
    probability: float | None
    hallucinated: bool | None


COLUMNS = tuple(field.name for field in fields(Prediction))


@dataclass(frozen=True)
class Predictions:
    """Predictions for a data set, sorted by (question id, trace, key)."""

    detector: FittedDetector
    checkpoint: Path
    samples: list[Prediction]

    def summary(self) -> dict[str, Any]:
        """Return counts as JSON values, and the AUROC if both classes are present."""
        labels = [one.label for one in self.samples if one.label is not None]
        scores = [one.score for one in self.samples if one.label is not None]
        positives = sum(labels)
        both = 0 < positives < len(labels)
        decided = [one.hallucinated for one in self.samples if one.hallucinated is not None]
        return {
            "detector": self.detector.spec.name,
            "checkpoint": str(self.checkpoint),
            "samples": len(self.samples),
            "threshold": self.detector.threshold,
            "temperature": self.detector.temperature,
            "hallucinated": sum(decided) if decided or not self.samples else None,
            "n_pos": positives,
            "n_neg": len(labels) - positives,
            "n_unlabelled": len(self.samples) - len(labels),
            "auroc": metrics.auroc(labels, scores) if both else None,
        }


def predict(
    checkpoint: str | Path,
    shards: str | Path,
    options: PredictOptions | None = None,
    *,
    progress: Progress = no_progress,
    open_loader: OpenLoader = TraceLoader,
) -> Predictions:
    """Return the scores that the detector ``checkpoint`` gives the samples of a data set.

    Args:
        checkpoint: Folder or card of a detector, or folder of a run with one detector.
        shards: Folder of the data set.
        options: None: the defaults; ``out`` is not used.

    Raises:
        ValueError: The device does not exist.
        DetectorError: No checkpoint or several; the detector does not fit the data set, or a member
            that it reads is missing; no sample.
    """
    options = options or PredictOptions()
    split = options.split
    place = find_checkpoint(checkpoint)
    fitted = load_detector(place)
    config = TrainConfig(
        batch_size=options.batch_size or TrainConfig.batch_size,
        num_workers=options.num_workers,
        threads=options.threads,
        layers=fitted.layers,
    )
    source = Source(shards, config, choose_device(options.device), open_loader)
    samples: list[Prediction] = []
    for name in SPLITS if split == "all" else (split,):
        samples += _score_split(fitted, source, name, progress)
    if not samples:
        raise DetectorError(
            f"{shards} has no sample in split {split}; choose another of {', '.join(SPLIT_CHOICES)}"
        )
    samples.sort(key=lambda sample: (sample.question_id, sample.trace or 0, sample.key))
    return Predictions(fitted, place, samples)


def find_checkpoint(path: str | Path) -> Path:
    """Return ``path``, or the only detector of the run in it apart from controls; raise
    DetectorError if there are several (`load_detector` raises if there is none).
    """
    given = Path(path)
    if not given.is_dir() or (given / CARD_NAME).exists():
        return given
    cards = sorted([*given.glob(f"checkpoints/*/{CARD_NAME}"), *given.glob(f"*/{CARD_NAME}")])
    # A run of one detector has checkpoints of its controls, too.
    cards = [card for card in cards if card.parent.name not in CONTROLS] or cards
    if len(cards) > 1:
        names = ", ".join(str(card.parent.relative_to(given)) for card in cards)
        raise DetectorError(f"{given} holds {len(cards)} detectors: {names}; name one of them")
    return cards[0].parent if cards else given


def write_predictions(predictions: Predictions, path: Path) -> None:
    """Write one line per sample as CSV, atomically; unknown values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    errors = predictions.detector.spec.reconstructs
    writer.writerow([*COLUMNS[:-1], "above_threshold"] if errors else COLUMNS)
    for sample in predictions.samples:
        writer.writerow([_cell(getattr(sample, name)) for name in COLUMNS])
    write_whole(path, text.getvalue().encode("utf-8", "surrogatepass"))


def _score_split(
    fitted: FittedDetector, source: Source, split: str, progress: Progress
) -> list[Prediction]:
    # All layers: those of the detector may be missing, which `require_traces` explains.
    whole = replace(source, config=replace(source.config, layers=None))
    with whole.batches(split, LoaderNeeds()) as batches:
        index = batches.index
        require_members(index, fitted.needs)
        fitted.require_traces(StoredTraces.of(index))
        examples = read_examples(batches)
    if not examples.keys:
        return []
    with source.batches(split, fitted.needs) as batches:
        watched = progress(batches, len(batches), f"scoring {split} with {fitted.spec.name}")
        probabilities: list[float] | list[None]
        if fitted.calibrated:
            logits = examples.align(fitted.logits(watched, source.device))
            scores = metrics.sigmoid(logits).tolist()
            probabilities = fitted.probabilities(logits).tolist()
        else:
            scores = examples.align(fitted.scores(watched, source.device)).tolist()
            probabilities = [None] * len(scores)
    traces = _trace_numbers(index, split)
    return [
        Prediction(
            question_id=question_id,
            key=key,
            trace=traces.get(key),
            split=split,
            label=None if math.isnan(label) else int(label),
            score=score,
            probability=probability,
            hallucinated=None if fitted.least is None else score >= fitted.least,
        )
        for question_id, key, label, score, probability in zip(
            examples.question_ids,
            examples.keys,
            examples.labels.tolist(),
            scores,
            probabilities,
            strict=True,
        )
    ]


def _trace_numbers(index: DatasetIndex, split: str) -> dict[str, int]:
    """Return the trace number of each key of a split; empty if the table has none."""
    if "trace" not in index.columns:
        return {}
    rows = np.flatnonzero(index.columns["split"] == SPLITS.index(split))
    return dict(zip(index.keys(rows), index.columns["trace"][rows].tolist(), strict=True))


def _cell(value: object) -> object:
    """Return a cell of the file; floats have nine digits, which float32 needs."""
    if isinstance(value, float):
        return f"{value:.9g}"
    return int(value) if isinstance(value, bool) else value
