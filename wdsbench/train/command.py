"""The ``train`` command as a function: one run, a run per seed, or a search followed by a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from wdsbench.progress import Progress, no_progress
from wdsbench.train.config import TrainOptions
from wdsbench.train.output import result_files
from wdsbench.train.results import Results
from wdsbench.train.run import train
from wdsbench.train.search import SEARCHES_NAME, search_and_train
from wdsbench.train.seeds import train_seeds
from wdsbench.train.trials import SEARCH_NAME, SearchResult


def run_training(
    shards: str | Path,
    options: TrainOptions,
    *,
    progress: Progress = no_progress,
    on_search: Callable[[SearchResult], None] | None = None,
) -> Results:
    """Train and measure the detectors of ``options`` on the data set ``shards``.

    Under ``torchrun`` every rank calls this; all return the same results, the first rank writes.

    Args:
        shards: Folder of the data set.
        options: Settings, output folder, search and seeds.
        progress: Draws bars.
        on_search: Called on the first rank after the search for each detector.

    Raises:
        ValueError: An argument is invalid, or the device does not exist.
        DetectorError: The data cannot be used, or no detector could be trained.
        StoppedError: A signal stopped the run; its state is saved.
        RankError: Another rank failed.
    """
    names, out, config = options.names, options.out, options.config
    if options.search is not None:
        return search_and_train(
            shards,
            names,
            out,
            config,
            options.search,
            progress=progress,
            resume=options.resume,
            on_search=on_search,
        )
    if options.seeds is not None:
        once = partial(train, resume=options.resume)
        return train_seeds(shards, names, out, config, options.seeds, train=once, progress=progress)
    return train(shards, names, out, config, progress=progress, resume=options.resume)


def written_files(options: TrainOptions) -> list[Path]:
    """Return the files and folders that `run_training` has written, the results first."""
    searches = [options.out / SEARCHES_NAME / name / SEARCH_NAME for name in options.names]
    return [*result_files(options.out), *(searches if options.search is not None else ())]
