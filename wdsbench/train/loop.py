"""The fit of one detector: epochs of steps with early stopping on validation, by AUROC, or by the
mean error of a detector that reconstructs.

Samples that a fit leaves out (see `wdsbench.train.step.used_samples`) do not contribute to the loss
or to the figure of validation. No tensor of a batch is used
after its step, because the loader reuses batch memory.

The complete state of a fit (weights, optimiser, generators, loader position, running sums) is saved
after every epoch and every ``checkpoint_seconds`` within one. A resumed fit ends with the same
weights, bit for bit on a CPU with the same numbers of threads and ranks.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wdsbench.errors import DetectorError, StoppedError
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Batch
from wdsbench.train.config import TrainConfig
from wdsbench.train.examples import Examples
from wdsbench.train.log import EpochRecord, FitResult
from wdsbench.train.metrics import auroc
from wdsbench.train.ranks import ALONE, Ranks
from wdsbench.train.scoring import merged, score_batches, sum_errors, torch_threads
from wdsbench.train.source import Loader
from wdsbench.train.state import (
    NO_SAVER,
    FitProgress,
    FitState,
    StateSaver,
    load_optimizer,
    optimizer_tensors,
)
from wdsbench.train.step import Inputs, Signals, Stepper


@dataclass(frozen=True)
class FitData:
    """The data of a fit. Both loaders are iterated once per epoch; ``val_examples`` has the samples
    of all ranks; ``positive_weight`` is the loss weight of hallucinated samples, None: 1;
    ``reconstructs`` is that of the detector's registry entry.
    """

    inputs: Inputs
    train: Loader
    val: Loader
    val_examples: Examples
    positive_weight: float | None = None
    reconstructs: bool = False


def fit(
    detector: nn.Module,
    data: FitData,
    config: TrainConfig,
    *,
    device: str = "cpu",
    ranks: Ranks = ALONE,
    saver: StateSaver = NO_SAVER,
    on_epoch: Callable[[EpochRecord], None] | None = None,
    on_resume: Callable[[EpochRecord], None] | None = None,
    what: str = "training",
    progress: Progress = no_progress,
) -> FitResult:
    """Train ``detector`` in place and load the weights of the best epoch into it.

    The caller seeds torch (see `seeded`) before building the detector, so that one seed determines
    weights and dropout. The detector is the same on all ranks; afterwards it is on ``device`` in
    evaluation mode. ``on_resume`` is called with each record of an earlier part of the fit;
    ``what`` is the name of the progress bar.

    Raises:
        DetectorError: No labelled sample, only one class in validation, or a loss that is not
            finite.
        StoppedError: A signal stopped the fit; its state is saved.
        RankError: Another rank failed.
    """
    with torch_threads(detector, config.torch_threads):
        work = _Fit(detector, data, config, device, ranks, saver)
        if on_resume is not None:
            for record in work.progress.records:
                on_resume(record)
        left = range(work.progress.epoch, config.epochs)
        with saver.stop.deferring():
            for epoch in progress(left, len(left), what):
                if work.progress.finished:
                    break
                record = work.run_epoch(epoch)
                if on_epoch is not None:
                    on_epoch(record)
                work.end_epoch()
        return work.result()


class _Fit:
    """A fit in progress."""

    def __init__(
        self,
        detector: nn.Module,
        data: FitData,
        config: TrainConfig,
        device: str,
        ranks: Ranks,
        saver: StateSaver,
    ) -> None:
        state = saver.load()
        self.progress = FitProgress() if state is None else state.progress
        self._detector = detector.to(device)
        self._data = data
        self._config = config
        self._device = device
        self._ranks = ranks
        self._saver = saver
        if state is None:
            self.progress.total_steps = config.max_steps or len(data.train) * config.epochs
        self._stepper = Stepper(
            detector,
            data.inputs,
            config,
            device,
            ranks=ranks,
            positive_weight=data.positive_weight,
            reconstructs=data.reconstructs,
            total_steps=self.progress.total_steps,
        )
        self._best_weights: dict[str, Tensor] = {}
        self._saved_at = time.monotonic()
        if state is not None:
            self._restore(state)
        elif ranks.count > 1:  # the same weights, but different dropout
            torch.manual_seed(torch.initial_seed() + (ranks.rank << 32))

    def run_epoch(self, epoch: int) -> EpochRecord:
        """Train for the rest of an epoch and validate."""
        train = self._data.train
        train.set_epoch(epoch)
        self._train()
        done = self.progress
        reconstructs = self._data.reconstructs
        if done.used == 0:
            raise DetectorError(
                "every training sample has label 1; add samples without a label, or with label 0"
                if reconstructs
                else "no training sample has a label; score the traces and pack again with --scores"
            )
        self._require_finite_loss()
        mean = done.loss / done.used
        reached = self._validate()
        better = done.best is None or (reached < done.best if reconstructs else reached > done.best)
        if better:
            done.best, done.best_epoch = reached, epoch
            self._best_weights = copy.deepcopy(self._detector.state_dict())
        record = EpochRecord(
            epoch=epoch,
            loss=mean,
            val_auroc=None if reconstructs else reached,
            val_error=reached if reconstructs else None,
            seconds=done.seconds,
            samples_per_second=(done.used + done.left_out) / max(done.seconds, 1e-9),
            best=better,
            data=train.stats.verdict,
            step=done.step,
            learning_rate=self._stepper.learning_rate(max(done.step - 1, 0)),
        )
        done.records.append(record)
        return record

    def end_epoch(self) -> None:
        """Save the state and decide if the fit is finished."""
        done, config = self.progress, self._config
        done.finished = (
            done.epoch - done.best_epoch >= config.patience
            or done.epoch + 1 == config.epochs
            or (config.max_steps is not None and done.step >= config.max_steps)
        )
        done.next_epoch()
        self._save()
        self._stop_if_asked(saved=True)

    def result(self) -> FitResult:
        """Load the best weights into the detector and return the records."""
        self._detector.load_state_dict(self._best_weights)
        self._detector.eval()
        done = self.progress
        return FitResult(done.records, done.best_epoch, done.left_out_before)

    def _train(self) -> None:
        """Run the remaining steps of the epoch."""
        done, config = self.progress, self._config
        self._detector.train()
        total = torch.tensor(done.loss, dtype=torch.float64)
        before, started = done.seconds, time.perf_counter()
        if config.max_steps is not None and done.step >= config.max_steps:
            return
        for batch in self._data.train:
            result = self._stepper.step(batch, done.step, self._signals())
            total += result.loss.to(total.device)
            done.batches += 1
            done.used += result.used
            done.left_out += result.left_out
            done.step += result.used > 0
            if result.signals.save or result.signals.stop:
                done.loss, done.seconds = float(total), before + time.perf_counter() - started
                self._require_finite_loss()
                self._save()
            if result.signals.stop:
                self._stop()
            if done.step == config.max_steps:
                break
        done.loss, done.seconds = float(total), before + time.perf_counter() - started

    def _require_finite_loss(self) -> None:
        """Check the loss of the epoch, which is the same on all ranks."""
        done = self.progress
        if not abs(done.loss) < float("inf"):
            raise DetectorError(
                f"the loss of epoch {done.epoch} is {done.loss}; lower the learning rate, or pack"
                " again"
            )

    def _signals(self) -> Signals:
        due = time.monotonic() - self._saved_at >= self._config.checkpoint_seconds
        save = due and self._ranks.is_first and self._saver.folder is not None
        return Signals(save=save, stop=self._saver.stop.requested)

    def _validate(self) -> float:
        """Return the figure of validation: AUROC, or the mean error."""
        settings = (self._device, self._config.torch_threads, self._config)
        model = (self._detector, self._data.inputs, self._until_stopped(self._data.val))
        if self._data.reconstructs:
            parts = self._ranks.together(lambda: sum_errors(*model, *settings))
            self._stop_if_asked()
            return sum(total for total, _ in parts) / sum(count for _, count in parts)
        scored = self._ranks.together(lambda: score_batches(*model, *settings))
        self._stop_if_asked()
        examples = self._data.val_examples
        scores = examples.align(merged(scored))
        return auroc(examples.known_labels, scores[examples.known])

    def _save(self) -> None:
        """Save the state; a collective call, the first rank writes."""
        if self._saver.folder is None:
            return
        mine = {"cpu": torch.get_rng_state()}
        if self._device != "cpu":
            mine["cuda"] = torch.cuda.get_rng_state(self._device)
        everybody = self._ranks.gather(mine)
        if self._ranks.is_first:
            if self.progress.batches == 0:  # between epochs: start of the next one
                self._data.train.set_epoch(self.progress.epoch)
            self._saver.save(
                self.progress,
                weights=self._detector.state_dict(),
                best_weights=self._best_weights,
                moments=optimizer_tensors(self._stepper.optimizer),
                generators={
                    f"{rank}.{kind}": state
                    for rank, states in enumerate(everybody)
                    for kind, state in states.items()
                },
                loader=self._data.train.state_dict(),
            )
        self._saved_at = time.monotonic()

    def _restore(self, state: FitState) -> None:
        self._detector.load_state_dict(state.weights)
        self._best_weights = {
            name: tensor.to(self._device) for name, tensor in state.best_weights.items()
        }
        load_optimizer(self._stepper.optimizer, state.moments)
        torch.set_rng_state(state.generators[f"{self._ranks.rank}.cpu"])
        on_gpu = state.generators.get(f"{self._ranks.rank}.cuda")
        if self._device != "cpu" and on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, self._device)
        self._data.train.load_state_dict(state.loader)

    def _until_stopped(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches until a signal asks to stop."""
        for batch in batches:
            if self._saver.stop.requested:
                return
            yield batch

    def _stop_if_asked(self, *, saved: bool = False) -> None:
        """Save the state, unless it is, and raise StoppedError if a signal has reached any rank."""
        if any(self._ranks.gather(self._saver.stop.requested)):
            if not saved:
                self._save()
            self._stop()

    def _stop(self) -> None:
        raise StoppedError(
            f"{self._saver.stop.what} in epoch {self.progress.epoch}, after step"
            f" {self.progress.step}; continue with --resume"
        )
