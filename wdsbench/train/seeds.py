"""The same detectors trained with several seeds, to measure how much a figure depends on the seed.

    seed-0000/ ...   one complete run per seed (see `wdsbench.train.run`)
    results.json     means and spreads over seeds (see `wdsbench.train.means`)
    report.md        tables
    roc.png          mean ROC curves

A seed determines order, weights and dropout. A detector that failed with one seed has no mean,
because a mean over the successful seeds would be biased; its reason is reported instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from wdsbench.errors import DetectorError
from wdsbench.progress import Progress, no_progress, prefixed
from wdsbench.train.config import TrainConfig
from wdsbench.train.means import seed_folder, write_means
from wdsbench.train.output import result_files
from wdsbench.train.ranks import Ranks, open_ranks, rank_device
from wdsbench.train.results import RESULTS_NAME, Results, failure_text, load_results
from wdsbench.train.run import train as train_once

#: One run with the first five arguments of `wdsbench.train.run.train`.
Train = Callable[[str | Path, Sequence[str], Path, TrainConfig, Progress], Results]


def train_seeds(
    shards: str | Path,
    detectors: Sequence[str],
    out: str | Path,
    config: TrainConfig,
    seeds: int,
    *,
    train: Train = train_once,
    progress: Progress = no_progress,
) -> Results:
    """Train ``detectors`` with the seeds ``config.seed``, ``config.seed + 1``, ... and return the
    means and spreads of their figures.

    Under ``torchrun`` every rank calls this; all return the same results, the first rank writes.
    The means of an earlier call in ``out`` are replaced, runs of other seeds are kept.
    ``config.seed`` is also the seed of the resamples; ``train`` is the function of one run.

    Raises:
        ValueError: ``seeds`` is less than 1, the last seed is too large, or as ``train`` raises.
        DetectorError: As ``train`` raises, or no detector could be run with every seed
            (``results.json`` has the reasons).
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it must be at least 1")
    settings = [dataclasses.replace(config, seed=config.seed + step) for step in range(seeds)]
    folder = Path(out)
    device = rank_device(config.device)
    with open_ranks(device, config.rank_timeout_seconds) as ranks:
        if ranks.is_first:
            # Figures and scores of a single run would contradict the means.
            for path in result_files(folder):
                if path.is_file():
                    path.unlink()
        runs: dict[int, Results] = {}
        for step, setting in enumerate(settings):
            shown = prefixed(progress, f"seed {setting.seed} ({step + 1} of {seeds}): ")
            place = seed_folder(folder, setting.seed)
            runs[setting.seed] = _run(train, shards, detectors, place, setting, shown, ranks)
        results, *_ = ranks.together(
            lambda: write_means(runs, folder, config) if ranks.is_first else None
        )
    assert results is not None
    if not any(name in results.detectors for name in detectors):
        reasons = failure_text(results.not_available)
        raise DetectorError(f"no detector could be run with every seed: {reasons}")
    return results


def _run(
    train: Train,
    shards: str | Path,
    detectors: Sequence[str],
    folder: Path,
    config: TrainConfig,
    progress: Progress,
    ranks: Ranks,
) -> Results:
    """Return the results of one seed, which may consist of reasons only."""
    before = _version(folder / RESULTS_NAME)
    try:
        return train(shards, detectors, folder, config, progress)
    except DetectorError as error:
        failure = error  # raised on all ranks

    def reasons() -> Results | None:
        if not ranks.is_first:
            return None
        # New results: reasons by detector. No new results: the data cannot be used at all.
        if _version(folder / RESULTS_NAME) in (None, before):
            raise failure
        return load_results(folder)

    found, *_ = ranks.together(reasons)
    assert found is not None
    return found


def _version(path: Path) -> tuple[int, int] | None:
    """Return a value that changes when ``path`` is rewritten; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
