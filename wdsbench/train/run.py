"""One run: every detector fitted and measured on the same splits of one data set.

`wdsbench.train.output` lists the files of a run. Epoch, layer, sign, threshold and best detector
are chosen on validation; the test split is read once per detector, at its end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from wdsbench.detect.registry import CONTROLS, DetectorSpec, detector_spec
from wdsbench.errors import DetectorError, StoppedError
from wdsbench.loader.loader import TraceLoader
from wdsbench.progress import Progress, no_progress
from wdsbench.records import SPLITS
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample
from wdsbench.train.config import TrainConfig
from wdsbench.train.examples import Examples, read_splits, with_groups
from wdsbench.train.fitting import STATES_NAME, FitContext, Session, fit_setting, run_detector
from wdsbench.train.log import MetricsLog
from wdsbench.train.measure import Outcome, measure, with_text
from wdsbench.train.output import finished_results, remove_earlier, remove_states, write_run
from wdsbench.train.ranks import open_ranks, rank_device
from wdsbench.train.results import Results, failure_text
from wdsbench.train.source import OpenLoader, Source, asking, labels_digest
from wdsbench.train.state import load_state, require_same
from wdsbench.train.stop import StopRequest


@dataclass(frozen=True)
class Searched:
    """Settings (fields of `TrainConfig`) of one detector that were found by a search with
    ``trials`` trials, and their validation AUROC.
    """

    settings: Mapping[str, Any]
    trials: int
    val_auroc: float


@contextlib.contextmanager
def open_session(
    shards: str | Path,
    config: TrainConfig,
    progress: Progress,
    open_loader: OpenLoader,
    *,
    deferred: bool,
    cancel: Callable[[], bool] | None = None,
) -> Iterator[Session]:
    """Join the ranks, handle signals and set determinism until the end of the block.

    ``deferred``: signals wait until they are polled (see `StopRequest`); otherwise they raise
    StoppedError.
    """
    device = rank_device(config.device)
    stop = StopRequest(deferred=deferred, cancel=cancel)
    opened = asking(open_loader, stop)
    with (
        open_ranks(device, config.rank_timeout_seconds) as ranks,
        stop.listening(),
        _determinism(config.deterministic),
    ):
        shown = progress if ranks.is_first else no_progress
        yield Session(Source(shards, config, device, opened), ranks, stop, shown)


def train(
    shards: str | Path,
    detectors: Sequence[str],
    out: str | Path,
    config: TrainConfig | None = None,
    progress: Progress = no_progress,
    open_loader: OpenLoader = TraceLoader,
    *,
    resume: bool = False,
    searched: Mapping[str, Searched] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Results:
    """Fit and evaluate ``detectors`` on the data set ``shards`` and write all files into ``out``.

    Under ``torchrun`` every rank calls this; all return the same results, the first rank writes.

    Args:
        shards: Path of the data set.
        detectors: Names of the registry; the controls that fit the data set are added.
        out: Folder, created if missing; files of an earlier run in it are replaced.
        config: Settings; None: the defaults (`TrainConfig.for_images` for detectors on images).
        resume: Continue an interrupted run in ``out``; start one if there is none.
        searched: Settings per detector that override ``config``; recorded in the results under
            ``config["search"]``.
        cancel: Called before every batch; True ends the run as a signal does.

    Raises:
        ValueError: An unknown detector, or none; the device does not exist; searched settings for
            a detector that is not trained.
        DetectorError: A split lacks a class, no detector could be run (``results.json`` has the
            reasons), or the earlier run had other settings.
        StoppedError: A signal or ``cancel`` stopped the run; its state is saved.
        RankError: Another rank failed.
    """
    specs = [detector_spec(name) for name in dict.fromkeys(detectors)]
    if not specs:
        raise ValueError("detectors is empty; no detector was asked for")
    if config is None:
        images = all(spec.reconstructs for spec in specs)
        config = TrainConfig.for_images() if images else TrainConfig()
    searched = dict(searched or {})
    if others := searched.keys() - {spec.name for spec in specs}:
        raise ValueError(
            f"settings were searched for {', '.join(sorted(others))}; it must be one of the"
            f" detectors asked for: {', '.join(spec.name for spec in specs)}"
        )
    opened = open_session(shards, config, progress, open_loader, deferred=False, cancel=cancel)
    with opened as session:
        return _TrainRun(specs, session, Path(out), resume, searched).run()


@dataclass(frozen=True)
class _TrainRun:
    """One call of `train` on one rank."""

    specs: list[DetectorSpec]
    session: Session
    out: Path
    resume: bool
    searched: Mapping[str, Searched]

    def run(self) -> Results:
        """Add the controls, run all detectors, and write the files on the first rank."""
        source, ranks = self.session.source, self.session.ranks
        examples, index = read_splits(source, ranks, SPLITS)
        meta, *_ = ranks.together(lambda: StoredSample(index, 0).meta())
        examples["test"] = with_groups(examples["test"], source, ranks, meta)
        whole = dataclasses.replace(self, specs=with_controls(self.specs, index, meta))
        results = whole._results(examples, index)
        reasons = {spec.name: results.not_available.get(spec.name) for spec in self.specs}
        if all(reasons.values()):
            words = failure_text(results.not_available)
            raise DetectorError(f"none of the detectors could be run: {words}")
        return results

    def _results(self, examples: dict[str, Examples], index: DatasetIndex) -> Results:
        source, ranks = self.session.source, self.session.ranks
        settings = self._settings()
        if self.resume:
            finished = finished_results(self.out, settings, labels_digest(index))
            if finished is not None:
                return finished
            self._require_states(index)  # before anything of the earlier run is removed
        if ranks.is_first:
            self.out.mkdir(parents=True, exist_ok=True)
            remove_earlier(self.out, states=not self.resume)
        ranks.gather(None)  # no rank writes before the removal is done
        outcomes, not_available = self._run_detectors(examples, index)
        outcomes = with_text(outcomes, examples)
        results = Results(
            detectors=measure(outcomes, examples, source.config),
            not_available=not_available,
            dataset=_dataset(source.shards, examples, index),
            config=settings,
        )
        if ranks.is_first:
            write_run(results, outcomes, examples, self.out)
            remove_states(self.out)
        return results

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            **self.session.source.config.as_json(),
            "device": self.session.source.device,
            "ranks": self.session.ranks.count,
            "detectors": [spec.name for spec in self.specs],
        }
        if self.searched:
            settings["search"] = {name: asdict(found) for name, found in self.searched.items()}
        return settings

    def _run_detectors(
        self, examples: dict[str, Examples], index: DatasetIndex
    ) -> tuple[dict[str, Outcome], dict[str, str]]:
        """Return the outcomes, and the reasons of detectors without one."""
        source, ranks, stop = self.session.source, self.session.ranks, self.session.stop
        outcomes: dict[str, Outcome] = {}
        not_available: dict[str, str] = {}
        folder = self.out if ranks.is_first else None
        with MetricsLog(folder, tensorboard=source.config.tensorboard) as log:
            context = FitContext(*self.session.parts, examples, index, self.out, log, self.resume)
            for spec in self.specs:
                try:
                    own = context.with_config(self._config(spec))
                    outcomes[spec.name] = run_detector(spec, own)
                except DetectorError as error:
                    not_available[spec.name] = str(error)
                # An exception that a signal handler raises in a finaliser is lost.
                if any(ranks.gather(stop.requested)):
                    raise StoppedError(f"{stop.what} after {spec.name}; continue with --resume")
        return outcomes, not_available

    def _require_states(self, index: DatasetIndex) -> None:
        """Raise DetectorError if a saved state is damaged, has other settings, or differs between
        ranks.
        """
        found = self.session.ranks.together(partial(self._states, index))
        if any(other != found[0] for other in found):
            raise DetectorError(
                f"{self.out}: the ranks find different saved states; --out must be one folder that"
                " all ranks can read"
            )

    def _states(self, index: DatasetIndex) -> dict[str, Any]:
        """Return the progress of each saved fit, as this rank reads it."""
        found: dict[str, Any] = {}
        for spec in self.specs:
            folder = self.out / STATES_NAME / spec.name
            state = load_state(folder)
            if state is not None:
                then = {name: value for name, value in state.setting.items() if name != "shape"}
                now = fit_setting(spec.name, self._config(spec), self.session.ranks, index)
                require_same(then, now, folder)
                found[spec.name] = state.progress
        return found

    def _config(self, spec: DetectorSpec) -> TrainConfig:
        """Return the settings of one detector."""
        found = self.searched.get(spec.name)
        config = self.session.source.config
        return config if found is None else dataclasses.replace(config, **found.settings)


def with_controls(
    specs: Sequence[DetectorSpec], index: DatasetIndex, meta: Mapping[str, Any]
) -> list[DetectorSpec]:
    """Return ``specs`` and the controls that fit the data set, of which ``meta`` is the first
    sample's: images have none, and similarity needs contexts.
    """
    given = [spec.name for spec in specs]
    fitting = [] if index.tensor.name == "image" else list(CONTROLS)
    if "context" not in meta and "similarity_control" in fitting:
        fitting.remove("similarity_control")
    return [*specs, *(detector_spec(name) for name in fitting if name not in given)]


@contextlib.contextmanager
def _determinism(wanted: bool) -> Iterator[None]:
    """Use deterministic operators only in the block, if ``wanted``."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    # cuBLAS is deterministic only with a workspace of fixed size (its documentation, 2.1.4).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _dataset(
    shards: str | Path, examples: dict[str, Examples], index: DatasetIndex
) -> dict[str, Any]:
    return {
        "shards": str(shards),
        "kind": index.tensor.name,
        "splits": {split: found.counts() for split, found in examples.items()},
        "num_layers": index.num_layers,
        "num_features": index.num_features,
        # Source of the labels, and the table that has them.
        "labels": None if index.labels is None else index.labels.model_dump(),
        "table": labels_digest(index),
    }
