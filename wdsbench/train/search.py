"""Settings of a trained detector, searched on validation: learning rate, width, depth and dropout.

    search.json    every trial that ended, and the best of them; written anew after each
    trial-0007/    the state of the trial under way, gone when it ends

A trial is a whole fit, early stopping included, with the seed of the run; its figure is the
validation AUROC of its best epoch. Trial 0 is the setting given, so that what is found is never
worse there than what one had. The others are suggested by TPE (optuna), the first ten without
regard to what came before. The test split is not opened.

Trial n follows from the seed, n and the trials before it, and from nothing else: the sampler is
made anew for every trial and told the earlier ones. So a search that was killed goes on to the same
trials, and under several ranks the first one asks and tells the others.

The best of many figures owes some of its height to luck, so what a search reached on validation
says little of other data: the detector is trained again with those settings and measured on test.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from wdsbench.detect.registry import DetectorShape, DetectorSpec, detector_spec
from wdsbench.errors import DetectorError, StoppedError
from wdsbench.files import remove_if_empty
from wdsbench.progress import Progress, T, no_progress
from wdsbench.train.checkpoint import remove_detector
from wdsbench.train.config import FREE_ON_RESUME, TrainConfig
from wdsbench.train.device import choose_device
from wdsbench.train.fitting import CHECKPOINTS_NAME, STATES_NAME, Run, fit_detector, labels_digest
from wdsbench.train.keeper import StopSwitch
from wdsbench.train.log import MetricsLog
from wdsbench.train.ranks import Ranks, open_ranks, rank_device
from wdsbench.train.results import Results
from wdsbench.train.run import Searched, determinism, read_splits, remove_earlier, train
from wdsbench.train.source import Examples, OpenLoader, Source, default_open_loader, require_members
from wdsbench.train.state import remove_state
from wdsbench.train.suggest import sampler_seed, search_space, suggest
from wdsbench.train.trials import SEARCH_NAME, SearchResult, Trial, read_search, write_search

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SEARCHES_NAME = "search"


def search(
    shards: str | Path,
    detector: str,
    out: str | Path,
    config: TrainConfig | None = None,
    trials: int = 20,
    *,
    progress: Progress = no_progress,
    open_loader: OpenLoader | None = None,
    resume: bool = False,
) -> SearchResult:
    """Try ``trials`` settings of ``detector`` on train and val and return what each reached.

    Under `torchrun` every rank calls this alike; all return the same, the first one writes.

    Args:
        shards: What the loader opens; its test split is not.
        detector: A name of the registry, trained by gradient descent.
        out: Folder, made if need be; gets ``search.json``. An earlier search in it is replaced.
        config: Settings of trial 0, and whatever is not searched of all; None: the defaults.
        trials: How many, the given setting included.
        progress: Draws bars.
        open_loader: The loader's constructor; None: the project's own.
        resume: Go on where an earlier search in ``out`` was stopped or killed, or add to one that
            ended with fewer trials; where there is none, begin.

    Raises:
        ValueError: An unknown detector, or one that is not trained by gradient descent; fewer than
            one trial; optuna is not installed; a device that is not there.
        DetectorError: The detector cannot be trained on this data, every trial failed, or the
            earlier search had other settings.
        StoppedError: A signal (SIGINT, SIGTERM) asked for the end; what was done is saved.
        RankError: Another rank is gone.
    """
    found = _search(shards, detector, out, config, trials, progress, open_loader, resume)
    if found.best is None:
        raise DetectorError(f"no settings of {detector} were found: {found.failure}")
    return found


def search_and_train(
    shards: str | Path,
    detectors: Sequence[str],
    out: str | Path,
    config: TrainConfig | None = None,
    trials: int = 20,
    *,
    progress: Progress = no_progress,
    open_loader: OpenLoader | None = None,
    resume: bool = False,
    on_search: Callable[[SearchResult], None] | None = None,
) -> Results:
    """Search settings for each of ``detectors``, train each with the best it reached on validation,
    and measure them as `wdsbench.train.run.train` does; that writes into ``out``.

    ``search/NAME/search.json`` in ``out`` holds a detector's trials, ``config["search"]`` of the
    results its settings. A detector for which none were found is one without figures.

    Args:
        shards: What the loader opens.
        detectors: Names of the registry, trained by gradient descent.
        out: Folder, made if need be.
        config: As of `search`.
        trials: For each detector.
        progress: Draws bars.
        open_loader: The loader's constructor; None: the project's own.
        resume: Go on where an earlier call was stopped or killed; where there is none, begin.
        on_search: Called on the first rank after each search.

    Raises:
        ValueError: As of `search`, before anything is run.
        DetectorError: As of `wdsbench.train.run.train`, or an earlier search had other settings.
        StoppedError: A signal (SIGINT, SIGTERM) asked for the end; what was done is saved.
        RankError: Another rank is gone.
    """
    names = list(dict.fromkeys(detectors))
    if not names:
        raise ValueError("no detector was asked for")
    _require_searchable(names, trials)
    config = config or TrainConfig()
    folder = Path(out)
    found: dict[str, SearchResult] = {}
    # After another trial, what was trained before may have been trained with other settings.
    stale = partial(remove_earlier, folder, states=True)
    device = choose_device(rank_device(config.device))
    with open_ranks(device, config.rank_timeout_seconds) as ranks:  # once for searches and training
        for name in names:
            place = folder / SEARCHES_NAME / name
            found[name] = _search(
                shards, name, place, config, trials, progress, open_loader, resume, stale
            )
            if on_search is not None and ranks.is_first:
                on_search(found[name])
        searched = {
            name: Searched(best.settings, len(result.trials), best.val_auroc or 0.0)
            for name, result in found.items()
            if (best := result.best) is not None
        }
        return train(
            shards,
            names,
            folder,
            config,
            progress,
            open_loader,
            resume=resume,
            searched=searched,
        )


def _require_searchable(names: Sequence[str], trials: int) -> None:
    """Refuse what can be refused before any data is read.

    Raises:
        ValueError: See `search`.
    """
    if trials < 1:
        raise ValueError(f"trials is {trials}; it must be at least 1")
    others = [name for name in names if detector_spec(name).kind != "trained"]
    if others:
        raise ValueError(
            f"{', '.join(others)} cannot be searched: no learning rate, width, depth or dropout"
            " decides what is fitted but for detectors trained by gradient descent; leave out"
            f" {', '.join(others)}, or --search"
        )
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ValueError("optuna is not installed; pip install 'wdsbench[search]'") from error


def _search(
    shards: str | Path,
    detector: str,
    out: str | Path,
    config: TrainConfig | None,
    trials: int,
    progress: Progress,
    open_loader: OpenLoader | None,
    resume: bool,
    before_trials: Callable[[], None] = lambda: None,
) -> SearchResult:
    """Do what `search` does; a detector that cannot be trained is a result, too.

    ``before_trials`` is called on the first rank before the first trial that is run.
    """
    _require_searchable([detector], trials)
    config = config or TrainConfig()
    device = choose_device(rank_device(config.device))
    switch = StopSwitch()
    with (
        open_ranks(device, config.rank_timeout_seconds) as ranks,
        switch.listening(),
        determinism(config.deterministic),
    ):
        source = Source(shards, config, device, open_loader or default_open_loader())
        shown = progress if ranks.is_first else no_progress
        job = _Job(detector_spec(detector), source, Path(out), ranks, switch, resume, shown)
        return job.run(trials, before_trials)


@dataclass(frozen=True)
class _Job:
    """One search on one rank."""

    spec: DetectorSpec
    source: Source
    out: Path
    ranks: Ranks
    switch: StopSwitch
    resume: bool
    progress: Progress

    def run(self, wanted: int, before_trials: Callable[[], None]) -> SearchResult:
        examples, index = read_splits(self.source, self.ranks, ("train", "val"))
        setting = self._setting(index)
        trials, *_ = self.ranks.together(lambda: self._begin(setting))
        assert trials is not None
        with MetricsLog(None) as log:
            run = self._run(examples, index, log)
            try:
                space = self._space(index) if len(trials) < wanted else {}
            except DetectorError as error:
                return SearchResult(self.spec.name, trials, reason=str(error))
            if self.ranks.is_first and len(trials) < wanted:
                before_trials()
            for number in range(len(trials), wanted):
                trials.append(self._trial(run, number, wanted, space, trials))
                if self.ranks.is_first:
                    self._write(trials, setting)
                    self._remove_trial(self._trial_folder(number))
                if any(self.ranks.gather(self.switch.asked)):
                    raise StoppedError(
                        f"stopped by a signal after trial {number} of {self.spec.name}; go on with"
                        " --resume"
                    )
        return SearchResult(self.spec.name, trials)

    def _run(self, examples: dict[str, Examples], index: Any, log: MetricsLog) -> Run:
        return Run(
            source=self.source,
            examples=examples,
            index=index,
            out=self.out,
            log=log,
            progress=self.progress,
            ranks=self.ranks,
            switch=self.switch,
            resume=self.resume,
        )

    def _setting(self, index: Any) -> dict[str, Any]:
        """Return what must be the same when the search goes on."""
        config = self.source.config.as_json()
        return {
            **{name: value for name, value in config.items() if name not in FREE_ON_RESUME},
            "detector": self.spec.name,
            "ranks": self.ranks.count,
            "labels": labels_digest(index),
        }

    def _begin(self, setting: dict[str, Any]) -> list[Trial] | None:
        """Return the trials to go on from; on the first rank alone, which makes room for others.

        Raises:
            DetectorError: They were made with other settings, or cannot be read.
        """
        if not self.ranks.is_first:
            return None
        earlier = read_search(self.out / SEARCH_NAME) if self.resume else None
        trials: list[Trial] = []
        under_way = None
        if earlier is None:
            self._write([], setting)  # what a trial under way was begun with
        else:
            found, then = earlier
            self._require_same(then, setting)
            trials = found.trials
            under_way = self._trial_folder(len(trials))
        for folder in self.out.glob("trial-*"):
            if folder != under_way:
                self._remove_trial(folder)
        return trials

    def _require_same(self, then: dict[str, Any], now: dict[str, Any]) -> None:
        for name in sorted({*then, *now}):
            if then.get(name) != now.get(name):
                raise DetectorError(
                    f"{self.out}: {name} was {then.get(name)!r} when this search began and is"
                    f" {now.get(name)!r} now; go on with the same, or search again without --resume"
                )

    def _space(self, index: Any) -> dict[str, BaseDistribution]:
        """Return what is searched: the settings that this detector follows.

        Raises:
            DetectorError: It cannot be built for this data, or the data lack what it reads.
        """
        require_members(index, self.spec.needs)
        for split in ("train", "val"):
            with self.source.batches(split, self.spec.needs):
                pass
        # What is the same with twice the depth has nothing that is stacked.
        depths = [_parameters(self.spec, index, depth) for depth in (1, 2)]
        return search_space(depth=depths[0] != depths[1])

    def _trial(
        self,
        run: Run,
        number: int,
        wanted: int,
        space: dict[str, BaseDistribution],
        earlier: Sequence[Trial],
    ) -> Trial:
        config = self.source.config
        settings = None
        if self.ranks.is_first and number:
            settings = suggest(space, earlier, sampler_seed(config.seed, self.spec.name, number))
        elif self.ranks.is_first:
            settings = {name: getattr(config, name) for name in space}
        settings, *_ = self.ranks.gather(settings)
        assert settings is not None
        trial = dataclasses.replace(
            run.with_config(dataclasses.replace(config, **settings)),
            out=self._trial_folder(number),
            progress=_named(run.progress, f"trial {number + 1} of {wanted}: "),
        )
        started = time.perf_counter()
        auroc, epochs, reason = self._fit(trial)
        seconds, *_ = self.ranks.gather(time.perf_counter() - started)
        state: Literal["complete", "failed"] = "failed" if auroc is None else "complete"
        return Trial(number, settings, auroc, epochs, seconds, state, reason)

    def _fit(self, run: Run) -> tuple[float | None, int, str]:
        """Return the best validation AUROC, the epochs, and why there are none."""
        try:
            _, result = fit_detector(self.spec, run)
        except DetectorError as error:  # raised on all ranks alike
            return None, 0, str(error)
        except torch.OutOfMemoryError as error:
            if self.ranks.count > 1:
                raise  # others still wait for this one
            torch.cuda.empty_cache()
            return None, 0, f"no memory left on {self.source.device}: {error}".splitlines()[0]
        assert result is not None
        return result.records[result.best_epoch].val_auroc, len(result.records), ""

    def _write(self, trials: list[Trial], setting: dict[str, Any]) -> None:
        write_search(SearchResult(self.spec.name, trials), setting, self.out / SEARCH_NAME)

    def _trial_folder(self, number: int) -> Path:
        return self.out / f"trial-{number:04d}"

    def _remove_trial(self, folder: Path) -> None:
        """Remove what a trial left; files of others stay."""
        remove_state(folder / STATES_NAME / self.spec.name)
        remove_detector(folder / CHECKPOINTS_NAME / self.spec.name)
        for name in (STATES_NAME, CHECKPOINTS_NAME, ""):
            remove_if_empty(folder / name)


def _parameters(spec: DetectorSpec, index: Any, depth: int) -> int:
    """Return the number of weights of a detector of few layers and features, without any memory."""
    assert spec.build is not None
    shape = DetectorShape(2, 2, 2, depth, 0.0, num_heads=getattr(index, "num_heads", 0))
    with torch.device("meta"):
        return sum(weight.numel() for weight in spec.build(shape).parameters())


def _named(progress: Progress, prefix: str) -> Progress:
    """Return ``progress`` with ``prefix`` before the name of every bar."""

    def prefixed(items: Iterable[T], total: int | None, what: str) -> Iterable[T]:
        return progress(items, total, prefix + what)

    return prefixed
