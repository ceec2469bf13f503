"""Search for settings of a trained detector: learning rate, width, depth and dropout.

    search.json    finished trials and the best of them; written after each trial
    trial-0007/    state of the current trial, removed at its end

A trial is a complete fit, with early stopping and the seed of the run; its figure is the validation
AUROC of its best epoch. Trial 0 has the given settings, so the result is never worse on validation.
The others are suggested by the first rank (see `wdsbench.train.trials`) and depend only on the seed
and the earlier trials, so a resumed search runs the same ones. The test split is not opened.

The best of many validation figures is biased upwards, so the detector is trained again with the
settings found and measured on the test split.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from wdsbench.detect.registry import DetectorShape, DetectorSpec, detector_spec
from wdsbench.errors import DetectorError, StoppedError, first_line
from wdsbench.files import remove_if_empty
from wdsbench.loader.loader import TraceLoader
from wdsbench.progress import Progress, no_progress, prefixed
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.train.checkpoint import remove_detector
from wdsbench.train.config import TrainConfig
from wdsbench.train.examples import read_splits
from wdsbench.train.fitting import (
    CHECKPOINTS_NAME,
    STATES_NAME,
    FitContext,
    Session,
    fit_detector,
    fit_setting,
)
from wdsbench.train.log import MetricsLog
from wdsbench.train.output import remove_earlier
from wdsbench.train.ranks import open_ranks, rank_device
from wdsbench.train.results import Results
from wdsbench.train.run import Searched, open_session, train
from wdsbench.train.source import OpenLoader, require_members
from wdsbench.train.state import remove_state, require_same
from wdsbench.train.trials import (
    SEARCH_NAME,
    SEARCHES_NAME,
    SearchResult,
    Trial,
    read_search,
    sampler_seed,
    search_space,
    suggest,
    write_search,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def search_and_train(
    shards: str | Path,
    detectors: Sequence[str],
    out: str | Path,
    config: TrainConfig,
    trials: int,
    *,
    progress: Progress = no_progress,
    open_loader: OpenLoader = TraceLoader,
    resume: bool = False,
    on_search: Callable[[SearchResult], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Results:
    """Search settings for each of ``detectors``, then train and measure them with the best ones.

    ``search/NAME/search.json`` in ``out`` has the trials of a detector, ``config["search"]`` of the
    results its settings. A detector without a successful trial has no figures. Arguments and errors
    are those of `search` and `wdsbench.train.run.train`; ``trials`` is the number per detector, and
    ``on_search`` is called on the first rank after each search.
    """
    names = list(dict.fromkeys(detectors))
    if not names:
        raise ValueError("detectors is empty; no detector was asked for")
    _require_searchable(names, trials)
    folder = Path(out)
    found: dict[str, SearchResult] = {}
    # A new trial can change the best settings, so earlier results are removed before it.
    outdated = partial(remove_earlier, folder, states=True)
    device = rank_device(config.device)
    with open_ranks(device, config.rank_timeout_seconds) as ranks:  # once for all searches
        for name in names:
            found[name] = search(
                shards,
                name,
                folder / SEARCHES_NAME / name,
                config,
                trials,
                progress=progress,
                open_loader=open_loader,
                resume=resume,
                before_trials=outdated,
                cancel=cancel,
            )
            if on_search is not None and ranks.is_first:
                on_search(found[name])
        searched = {
            name: Searched(best.settings, len(result.trials), best.val_auroc or 0.0)
            for name, result in found.items()
            if (best := result.best) is not None
        }
        settings = (config, progress, open_loader)
        return train(
            shards, names, folder, *settings, resume=resume, searched=searched, cancel=cancel
        )


def _require_searchable(names: Sequence[str], trials: int) -> None:
    """Raise ValueError for invalid arguments, before any data is read."""
    if trials < 1:
        raise ValueError(f"trials is {trials}; it must be at least 1")
    specs = [detector_spec(name) for name in names]
    others = ", ".join(s.name for s in specs if s.kind != "trained" or s.reconstructs)
    if others:
        raise ValueError(
            f"{others} cannot be searched: learning rate, width, depth and dropout only apply to"
            f" detectors trained on labels by gradient descent; omit {others}, or --search"
        )
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ValueError("optuna is not installed; pip install 'wdsbench[search]'") from error


def search(
    shards: str | Path,
    detector: str,
    out: Path,
    config: TrainConfig,
    trials: int,
    *,
    progress: Progress = no_progress,
    open_loader: OpenLoader = TraceLoader,
    resume: bool = False,
    before_trials: Callable[[], None] = lambda: None,
    cancel: Callable[[], bool] | None = None,
) -> SearchResult:
    """Try ``trials`` settings of ``detector`` on train and val and return their figures, even if
    the detector cannot be trained on this data.

    Under ``torchrun`` every rank calls this; all return the same result, the first rank writes.

    Args:
        out: Folder of ``search.json``, created if missing; an earlier search in it is replaced.
        config: Settings of trial 0, and those of all trials that are not searched.
        trials: Number of trials, including trial 0.
        resume: Continue an earlier search in ``out``, or add trials to a finished one; start one
            if there is none.
        before_trials: Called on the first rank before its first new trial.
        cancel: Called before every batch; True ends the search as a signal does.

    Raises:
        ValueError: An unknown detector, or one that is not trained by gradient descent; fewer than
            one trial; optuna is not installed; the device does not exist.
        DetectorError: The earlier search had other settings.
        StoppedError: A signal or ``cancel`` stopped the search; its state is saved.
        RankError: Another rank failed.
    """
    _require_searchable([detector], trials)
    opened = open_session(shards, config, progress, open_loader, deferred=True, cancel=cancel)
    with opened as session:
        work = _SearchRun(detector_spec(detector), session, out, resume)
        return work.run(trials, before_trials)


@dataclass(frozen=True)
class _SearchRun:
    """One search on one rank."""

    spec: DetectorSpec
    session: Session
    out: Path
    resume: bool

    def run(self, wanted: int, before_trials: Callable[[], None]) -> SearchResult:
        session, ranks = self.session, self.session.ranks
        config = session.source.config
        examples, index = read_splits(session.source, ranks, ("train", "val"))
        setting = fit_setting(self.spec.name, config, ranks, index)
        trials, *_ = ranks.together(lambda: self._earlier_trials(setting))
        assert trials is not None
        with MetricsLog(None) as log:
            context = FitContext(*session.parts, examples, index, self.out, log, self.resume)
            try:
                space = self._space(index) if len(trials) < wanted else {}
            except DetectorError as error:
                return SearchResult(self.spec.name, trials, reason=str(error))
            if ranks.is_first and len(trials) < wanted:
                before_trials()
            for number in range(len(trials), wanted):
                trials.append(self._trial(context, number, wanted, space, trials))
                if ranks.is_first:
                    self._write(trials, setting)
                    self._remove_trial(self._trial_folder(number))
                if any(ranks.gather(session.stop.requested)):
                    raise StoppedError(
                        f"{session.stop.what} after trial {number} of {self.spec.name}; continue"
                        " with --resume"
                    )
        return SearchResult(self.spec.name, trials)

    def _earlier_trials(self, setting: dict[str, Any]) -> list[Trial] | None:
        """Return the trials to continue from and remove the files of others; first rank only."""
        if not self.session.ranks.is_first:
            return None
        earlier = read_search(self.out / SEARCH_NAME) if self.resume else None
        trials: list[Trial] = []
        current = None
        if earlier is None:
            self._write([], setting)  # records the settings of an unfinished first trial
        else:
            found, then = earlier
            require_same(then, setting, self.out, "search")
            trials = found.trials
            current = self._trial_folder(len(trials))
        for folder in self.out.glob("trial-*"):
            if folder != current:
                self._remove_trial(folder)
        return trials

    def _space(self, index: DatasetIndex) -> dict[str, BaseDistribution]:
        """Return the search space of the settings that this detector uses; raise DetectorError if
        it cannot be trained on this data.
        """
        require_members(index, self.spec.needs)
        for split in ("train", "val"):
            with self.session.source.batches(split, self.spec.needs):
                pass
        # A detector without stacked layers has as many weights at twice the depth.
        depths = [_parameters(self.spec, index, depth) for depth in (1, 2)]
        return search_space(depth=depths[0] != depths[1])

    def _trial(
        self,
        context: FitContext,
        number: int,
        wanted: int,
        space: dict[str, BaseDistribution],
        earlier: Sequence[Trial],
    ) -> Trial:
        config, ranks = self.session.source.config, self.session.ranks
        settings = None
        if ranks.is_first and number:
            settings = suggest(space, earlier, sampler_seed(config.seed, self.spec.name, number))
        elif ranks.is_first:
            settings = {name: getattr(config, name) for name in space}
        settings, *_ = ranks.gather(settings)
        assert settings is not None
        trial = dataclasses.replace(
            context.with_config(dataclasses.replace(config, **settings)),
            out=self._trial_folder(number),
            progress=prefixed(context.progress, f"trial {number + 1} of {wanted}: "),
        )
        started = time.perf_counter()
        auroc, epochs, reason = self._fit(trial)
        seconds, *_ = ranks.gather(time.perf_counter() - started)
        state: Literal["complete", "failed"] = "failed" if auroc is None else "complete"
        return Trial(number, settings, auroc, epochs, seconds, state, reason)

    def _fit(self, context: FitContext) -> tuple[float | None, int, str]:
        """Return the best validation AUROC (None: failed), the epochs, and the reason."""
        try:
            _, result = fit_detector(self.spec, context)
        except DetectorError as error:  # raised on all ranks
            return None, 0, str(error)
        except torch.OutOfMemoryError as error:
            if context.ranks.count > 1:
                raise  # the other ranks wait for this one
            torch.cuda.empty_cache()
            device = context.source.device
            return None, 0, f"no memory left on {device}: {first_line(error)}"
        assert result is not None
        return result.records[result.best_epoch].val_auroc, len(result.records), ""

    def _write(self, trials: list[Trial], setting: dict[str, Any]) -> None:
        write_search(SearchResult(self.spec.name, trials), setting, self.out / SEARCH_NAME)

    def _trial_folder(self, number: int) -> Path:
        return self.out / f"trial-{number:04d}"

    def _remove_trial(self, folder: Path) -> None:
        """Remove the files of a trial; other files are kept."""
        remove_state(folder / STATES_NAME / self.spec.name)
        remove_detector(folder / CHECKPOINTS_NAME / self.spec.name)
        for name in (STATES_NAME, CHECKPOINTS_NAME, ""):
            remove_if_empty(folder / name)


def _parameters(spec: DetectorSpec, index: DatasetIndex, depth: int) -> int:
    """Return the number of weights of a small detector, without allocating it."""
    assert spec.build is not None
    shape = DetectorShape(2, 2, 2, depth, 0.0, num_heads=index.num_heads)
    with torch.device("meta"):
        return sum(weight.numel() for weight in spec.build(shape).parameters())
