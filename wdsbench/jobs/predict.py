"""Scores of traces by a trained detector."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wdsbench.options import option, part_of
from wdsbench.progress import Progress, no_progress
from wdsbench.train.config import PredictOptions

if TYPE_CHECKING:
    from wdsbench.train.predict import Predictions


@dataclass(frozen=True, kw_only=True)
class PredictJob(PredictOptions):
    """Options of :func:`predict`."""

    checkpoint: Path = option(help="Folder of a detector, or of a run with one.", argument=True)
    shards: Path = option(help="Folder of the data set.", argument=True)


def predict(job: PredictJob, *, progress: Progress = no_progress) -> Predictions:
    """Score the traces of a data set; write score, probability and decision to ``job.out``.

    Raises:
        DetectorError: The checkpoint is damaged, or does not fit the data set.
        ShardError: The data set is damaged.
    """
    from wdsbench.train.predict import predict as predict_scores
    from wdsbench.train.predict import write_predictions

    options = part_of(PredictOptions, job)
    predictions = predict_scores(job.checkpoint, job.shards, options, progress=progress)
    write_predictions(predictions, job.out)
    return predictions
