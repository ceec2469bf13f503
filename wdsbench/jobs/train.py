"""Training of detectors on a data set, and scores of a data set or of images by a trained one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wdsbench.jobs.verify import names_images
from wdsbench.options import option, part_of
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.read.open import open_index
from wdsbench.train.config import PredictOptions, TrainOptions

if TYPE_CHECKING:
    from wdsbench.train.predict import Predictions
    from wdsbench.train.predict_images import ImagePredictions
    from wdsbench.train.results import Results
    from wdsbench.train.trials import SearchResult

#: File of the scores of a data set.
SCORES = Path("scores.csv")


@dataclass(frozen=True, kw_only=True)
class TrainJob(TrainOptions):
    """Options of :func:`train`."""

    shards: Path = option(help="Folder of the data set.", argument=True)


def train(
    job: TrainJob,
    *,
    progress: Progress = no_progress,
    on_search: Callable[[SearchResult], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Results:
    """Train detectors and measure them on the test split; write everything to ``job.out``.

    Under ``torchrun`` every rank calls this; all return the same results, the first rank writes.
    ``on_search`` is called on the first rank after the search for each detector. ``cancel`` is
    called before every batch; True ends the run as a signal does.

    Raises:
        ValueError: An option is invalid, or the device does not exist.
        DetectorError: The data cannot be used, or no detector could be trained.
        StoppedError: A signal or ``cancel`` stopped the run; its state is saved.
        RankError: Another rank failed.
    """
    from wdsbench.train import run, search, seeds

    images = open_index(job.shards).tensor.name == "image"
    common = (job.shards, job.names(images=images), job.out, job.config(images=images))
    if job.search is not None:
        return search.search_and_train(
            *common,
            job.search,
            progress=progress,
            resume=job.resume,
            on_search=on_search,
            cancel=cancel,
        )
    if job.seeds is not None:
        once = partial(run.train, resume=job.resume, cancel=cancel)
        return seeds.train_seeds(*common, job.seeds, train=once, progress=progress)
    return run.train(*common, progress=progress, resume=job.resume, cancel=cancel)


@dataclass(frozen=True, kw_only=True)
class PredictJob(PredictOptions):
    """Options of :func:`predict` and :func:`predict_images`."""

    checkpoint: Path = option(help="Folder of a detector, or of a run with one.", argument=True)
    sources: tuple[str, ...] = option(
        help="Folder of a data set, or image files (paths, folders or quoted patterns).",
        argument=True,
    )

    @property
    def of_images(self) -> bool:
        """True if the sources are image files."""
        return names_images(self.sources)


def predict(job: PredictJob, *, progress: Progress = no_progress) -> Predictions:
    """Score the samples of a data set; write score, probability and decision to ``job.out``.

    Raises:
        DetectorError: The checkpoint is damaged, or does not fit the data set.
        ShardError: The data set is damaged.
    """
    from wdsbench.train.predict import predict as predict_scores
    from wdsbench.train.predict import write_predictions

    options = part_of(PredictOptions, job)
    if len(job.sources) != 1:
        raise ValueError(
            f"{len(job.sources)} sources ({', '.join(job.sources)}); pass one data set, or images"
        )
    predictions = predict_scores(job.checkpoint, job.sources[0], options, progress=progress)
    write_predictions(predictions, job.out or SCORES)
    return predictions


def predict_images(
    job: PredictJob,
    *,
    progress: Progress = no_progress,
    cancel: Callable[[], bool] | None = None,
) -> ImagePredictions:
    """Write error maps, masks, overlays and scores of images to the folder ``job.out``.

    ``cancel`` is called before every batch; True ends the run as a signal does.

    Raises:
        ValueError: An option is invalid, or an image lies in ``job.out``.
        DetectorError: The checkpoint is damaged, or is not of a detector of images.
        ImageError: An image cannot be used.
        StoppedError: A signal or ``cancel`` stopped the run; complete images are written.
    """
    from wdsbench.train.predict_images import predict_images as write_maps

    if job.out is None:
        raise ValueError("--out is missing; give the folder to which maps and scores are written.")
    options = part_of(PredictOptions, job)
    return write_maps(
        job.checkpoint, job.sources, job.out, options, progress=progress, cancel=cancel
    )
