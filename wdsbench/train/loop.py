"""The fit of one detector: epochs of steps, early stopping on validation AUROC, saved as it goes.

A detector that has a loss of its own besides (see `step.Penalised`) has it added, sample by sample.
Samples without a label take no part in either loss or in AUROC. The loop keeps no tensor of a batch
beyond the step that used it: batches may live in memory that is reused.

What the rest of a fit depends on (weights, optimiser, generators, place in the data, sums so far)
is saved after every epoch and, where the loader can say where it stands, every
``checkpoint_seconds`` within; a fit that goes on from there ends with the same weights, bit for bit
on a CPU with the same threads and ranks.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from wdsbench.errors import DetectorError, StoppedError
from wdsbench.progress import Progress as Bar
from wdsbench.progress import no_progress
from wdsbench.records import Batch
from wdsbench.train.config import TrainConfig
from wdsbench.train.keeper import NOTHING_KEPT, Keeper
from wdsbench.train.metrics import auroc
from wdsbench.train.ranks import ALONE, Ranks
from wdsbench.train.records import EpochRecord, FitResult
from wdsbench.train.source import Examples, number_of_batches, start_epoch
from wdsbench.train.state import FitState, Progress, load_optimizer, optimizer_tensors
from wdsbench.train.step import Inputs, Signals, Stepper, autocast, moved

# Below this, one thread of torch trains as fast as many, and a hundred times faster than many on a
# busy machine, where each of some hundred operators a step waits for the slowest thread. Measured
# on two cores, LSTM of 200,000 weights, batch 64: 10 ms a step with one thread; 1,160 ms with two
# while other processes had work for both cores.
SMALL_WEIGHTS = 1_000_000


@dataclass(frozen=True)
class FitData:
    """What a fit reads.

    Attributes:
        inputs: The detector's arguments of a batch.
        train: Iterated once per epoch, told the epoch before.
        val: Iterated once per epoch.
        val_examples: Labels of the validation samples of all ranks.
        positive_weight: Weight of hallucinated samples in the loss; None: 1.
    """

    inputs: Inputs
    train: Iterable[Batch]
    val: Iterable[Batch]
    val_examples: Examples
    positive_weight: float | None = None


def fit(
    detector: nn.Module,
    data: FitData,
    config: TrainConfig,
    *,
    device: str = "cpu",
    ranks: Ranks = ALONE,
    keeper: Keeper = NOTHING_KEPT,
    on_epoch: Callable[[EpochRecord], None] | None = None,
    on_resume: Callable[[list[EpochRecord]], None] | None = None,
    what: str = "training",
    progress: Bar = no_progress,
) -> FitResult:
    """Train ``detector`` in place and leave the best epoch's weights in it.

    The caller seeds torch (see `seeded`) before building the detector, so that weights and dropout
    follow one seed.

    Args:
        detector: On ``device`` afterwards, in evaluation mode; the same on all ranks.
        data: What it is trained and validated on.
        config: Settings.
        device: Where to train.
        ranks: Who trains together.
        keeper: Where the state is saved, and found again.
        on_epoch: Called after every epoch that is run.
        on_resume: Called once where a saved fit goes on, with the epochs that were run before.
        what: Name of the progress bar.
        progress: Draws it.

    Raises:
        DetectorError: No labelled sample, one class in validation, or the loss stopped being
            finite. StoppedError: a signal asked for the end; the state is saved. RankError: another
            rank is gone.
    """
    with torch_threads(detector, config.torch_threads):
        work = _Fit(detector, data, config, device, ranks, keeper)
        if on_resume is not None and work.progress.records:
            on_resume(work.progress.records)
        left = range(work.progress.epoch, config.epochs)
        with keeper.switch.waiting():
            for epoch in progress(left, len(left), what):
                if work.progress.finished:
                    break
                record = work.run_epoch(epoch)
                if on_epoch is not None:
                    on_epoch(record)
                work.end_epoch()
        return work.result()


class _Fit:
    """A fit under way."""

    def __init__(
        self,
        detector: nn.Module,
        data: FitData,
        config: TrainConfig,
        device: str,
        ranks: Ranks,
        keeper: Keeper,
    ) -> None:
        state = keeper.load()
        self.progress = Progress() if state is None else state.progress
        self._detector = detector.to(device)
        self._data = data
        self._config = config
        self._device = device
        self._ranks = ranks
        self._keeper = keeper
        if state is None:
            self.progress.total_steps = self._total_steps()
        self._stepper = Stepper(
            detector,
            data.inputs,
            config,
            device,
            ranks=ranks,
            positive_weight=data.positive_weight,
            total_steps=self.progress.total_steps,
        )
        self._best_weights: dict[str, Tensor] = {}
        self._saved_at = time.monotonic()
        if state is not None:
            self._go_on(state)
        elif ranks.count > 1:  # the same weights, but not the same dropout
            torch.manual_seed(torch.initial_seed() + (ranks.rank << 32))

    def run_epoch(self, epoch: int) -> EpochRecord:
        """Train and validate an epoch, or what is left of it."""
        train = self._data.train
        start_epoch(train, epoch)
        self._train()
        done = self.progress
        if done.labelled == 0:
            raise DetectorError(
                "no training sample has a label; score the traces and pack again with --scores"
            )
        self._require_finite_loss()
        mean = done.loss / done.labelled
        reached = self._validate()
        better = reached > done.best_auroc
        if better:
            done.best_auroc, done.best_epoch = reached, epoch
            self._best_weights = copy.deepcopy(self._detector.state_dict())
        record = EpochRecord(
            epoch=epoch,
            loss=mean,
            val_auroc=reached,
            seconds=done.seconds,
            samples_per_second=(done.labelled + done.unlabelled) / max(done.seconds, 1e-9),
            best=better,
            data=getattr(getattr(train, "stats", None), "verdict", ""),
            step=done.step,
            learning_rate=self._stepper.learning_rate(max(done.step - 1, 0)),
        )
        done.records.append(record)
        return record

    def end_epoch(self) -> None:
        """Save, and say whether another epoch follows."""
        done, config = self.progress, self._config
        done.finished = (
            done.epoch - done.best_epoch >= config.patience
            or done.epoch + 1 == config.epochs
            or (config.max_steps is not None and done.step >= config.max_steps)
        )
        done.next_epoch()
        self._save()
        if any(self._ranks.gather(self._keeper.stop_asked)):
            self._stop()

    def result(self) -> FitResult:
        """Put the best weights into the detector and say how it went."""
        self._detector.load_state_dict(self._best_weights)
        self._detector.eval()
        done = self.progress
        return FitResult(done.records, done.best_epoch, done.unlabelled_before)

    def _train(self) -> None:
        """Take the steps of the epoch, from where it stands."""
        done, config = self.progress, self._config
        self._detector.train()
        total = torch.tensor(done.loss, dtype=torch.float64)
        before, started = done.seconds, time.perf_counter()
        if config.max_steps is not None and done.step >= config.max_steps:
            return
        for batch in self._data.train:
            taken = self._stepper.step(batch, done.step, self._wanted())
            total += taken.loss.to(total.device)
            done.batches += 1
            done.labelled += taken.labelled
            done.unlabelled += taken.unlabelled
            done.step += taken.labelled > 0
            if (taken.signals.save or taken.signals.stop) and self._can_save:
                done.loss, done.seconds = float(total), before + time.perf_counter() - started
                self._require_finite_loss()
                self._save()
            if taken.signals.stop:
                self._stop()
            if done.step == config.max_steps:
                break
        done.loss, done.seconds = float(total), before + time.perf_counter() - started

    def _require_finite_loss(self) -> None:
        """Check the epoch's loss so far, which is the same on all ranks."""
        done = self.progress
        if not abs(done.loss) < float("inf"):
            raise DetectorError(
                f"the loss of epoch {done.epoch} is {done.loss}; lower the learning rate, or pack"
                " again"
            )

    def _wanted(self) -> Signals:
        due = time.monotonic() - self._saved_at >= self._config.checkpoint_seconds
        save = due and self._ranks.is_first and self._keeper.keeps and self._can_save
        return Signals(save=save, stop=self._keeper.stop_asked)

    def _validate(self) -> float:
        scored = self._ranks.together(
            lambda: score_batches(
                self._detector,
                self._data.inputs,
                self._data.val,
                self._device,
                self._config.torch_threads,
                self._config,
            )
        )
        examples = self._data.val_examples
        scores = examples.align(merged(scored))
        return auroc(examples.known_labels, scores[examples.known])

    @property
    def _can_save(self) -> bool:
        """Whether the loader can say where in an epoch it stands."""
        return hasattr(self._data.train, "state_dict")

    def _save(self) -> None:
        """Keep the state; all ranks take part, the first one writes."""
        if not self._keeper.keeps:
            return
        mine = {"cpu": torch.get_rng_state()}
        if self._device != "cpu":
            mine["cuda"] = torch.cuda.get_rng_state(self._device)
        everybody = self._ranks.gather(mine)
        if self._ranks.is_first:
            self._keeper.save(
                self.progress,
                weights=self._detector.state_dict(),
                best_weights=self._best_weights,
                moments=optimizer_tensors(self._stepper.optimizer),
                generators={
                    f"{rank}.{kind}": state
                    for rank, states in enumerate(everybody)
                    for kind, state in states.items()
                },
                loader=self._loader_state(),
            )
        self._saved_at = time.monotonic()

    def _loader_state(self) -> dict[str, Any] | None:
        if not self._can_save:
            return None
        if self.progress.batches == 0:  # between epochs: the next one from its start
            start_epoch(self._data.train, self.progress.epoch)
        found: dict[str, Any] = self._data.train.state_dict()  # type: ignore[attr-defined]
        return found

    def _go_on(self, state: FitState) -> None:
        self._detector.load_state_dict(state.weights)
        self._best_weights = {
            name: tensor.to(self._device) for name, tensor in state.best_weights.items()
        }
        load_optimizer(self._stepper.optimizer, state.moments)
        torch.set_rng_state(state.generators[f"{self._ranks.rank}.cpu"])
        on_gpu = state.generators.get(f"{self._ranks.rank}.cuda")
        if self._device != "cpu" and on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, self._device)
        if state.loader is not None and self._can_save:
            self._data.train.load_state_dict(state.loader)  # type: ignore[attr-defined]

    def _stop(self) -> None:
        raise StoppedError(
            f"stopped by a signal in epoch {self.progress.epoch}, after step {self.progress.step};"
            " go on with --resume"
        )

    def _total_steps(self) -> int | None:
        if self._config.max_steps is not None:
            return self._config.max_steps
        steps = number_of_batches(self._data.train)
        return None if steps is None else steps * self._config.epochs


def merged(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the scores of all ranks as one.

    Raises:
        DetectorError: A sample came on two ranks.
    """
    found: dict[str, float] = {}
    count = 0
    for part in parts:
        found.update(part)
        count += len(part)
    if len(found) != count:
        raise DetectorError(f"{count - len(found)} samples came on two ranks; pack again")
    return found


def score_batches(
    detector: nn.Module,
    inputs: Inputs,
    batches: Iterable[Batch],
    device: str = "cpu",
    threads: int | None = None,
    config: TrainConfig | None = None,
) -> dict[str, float]:
    """Return the logit of every sample by its key; the detector is left in evaluation mode.

    ``threads`` as in `torch_threads`; of ``config`` the precision counts.

    Raises:
        DetectorError: A logit is not finite, or a sample came twice.
    """
    detector.eval()
    keys: list[str] = []
    logits: list[Tensor] = []
    with torch.inference_mode(), torch_threads(detector, threads):
        for batch in batches:
            if not len(batch):
                continue  # another rank had one sample more
            with autocast(config or TrainConfig(), device):
                found = detector(*moved(inputs(batch), device))
            logits.append(found.float())
            keys.extend(batch.keys)
    values: list[float] = torch.cat(logits).double().cpu().tolist() if logits else []
    scores = dict(zip(keys, values, strict=True))
    if len(scores) != len(keys):
        raise DetectorError(f"{len(keys) - len(scores)} samples came twice; pack again")
    for key, value in scores.items():
        if not abs(value) < float("inf"):
            raise DetectorError(
                f"sample {key} has score {value}; its states hold values that are not finite: "
                "extract its trace again and pack again"
            )
    return scores


@contextlib.contextmanager
def seeded(seed: int, name: str, device: str = "cpu") -> Iterator[None]:
    """Seed torch for one detector and give the caller's generators back afterwards.

    The seed depends on the detector's name, so that its numbers do not change with what else is
    trained in the run.
    """
    devices = [torch.device(device)] if device != "cpu" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(xxhash.xxh3_64_intdigest(f"{seed}:{name}".encode()) >> 1)
        yield


@contextlib.contextmanager
def torch_threads(detector: nn.Module, threads: int | None = None) -> Iterator[None]:
    """Run torch's operators on as many threads inside the block as suit ``detector``.

    ``threads`` where it is given; else one for a small detector, and as they are for a large one.
    """
    before = torch.get_num_threads()
    weights = sum(weight.numel() for weight in detector.parameters())
    torch.set_num_threads(threads or (1 if weights < SMALL_WEIGHTS else before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
