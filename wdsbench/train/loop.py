"""Gradient descent on one detector: binary cross-entropy, AdamW, early stopping on validation
AUROC.

A detector that has a loss of its own besides (see `Penalised`) has it added, sample by sample.
Samples without a label take no part in either loss or in AUROC. The loop keeps no tensor of a
batch beyond the step that used it: batches may live in memory that is reused.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import xxhash
from torch import Tensor, nn

from wdsbench.errors import DetectorError
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Batch
from wdsbench.train.config import TrainConfig
from wdsbench.train.metrics import auroc
from wdsbench.train.source import Examples, start_epoch

# Below this, one thread of torch trains as fast as many, and a hundred times faster than many on a
# busy machine, where each of some hundred operators a step waits for the slowest thread. Measured
# on two cores, LSTM of 200,000 weights, batch 64: 10 ms a step with one thread; 1,160 ms with two
# while other processes had work for both cores.
SMALL_WEIGHTS = 1_000_000

Inputs = Callable[[Batch], tuple[Tensor, ...]]


@runtime_checkable
class Penalised(Protocol):
    """A detector with a loss of its own, which training adds to the cross-entropy."""

    def forward_with_penalty(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return (logits, penalty), float32 ``[B]`` each: the penalty of every sample by itself, so
        that samples can be left out and neither batch size nor neighbours change its weight.
        """
        ...


@dataclass(frozen=True)
class EpochRecord:
    """One line of ``metrics.jsonl``.

    Attributes:
        epoch: From 0.
        loss: Mean over the labelled training samples, the detector's own penalty included.
        val_auroc: After the epoch.
        seconds: Of the training pass, data included, validation not.
        samples_per_second: Of the same pass.
        best: Whether no earlier epoch had a better validation AUROC.
        data: What the loader says its time was spent on; empty where it says nothing.
    """

    epoch: int
    loss: float
    val_auroc: float
    seconds: float
    samples_per_second: float
    best: bool
    data: str = ""


@dataclass(frozen=True)
class FitResult:
    """What a fit leaves behind; the detector itself holds the best epoch's weights.

    Attributes:
        records: One per epoch that was run.
        best_epoch: The epoch whose weights were kept.
        unlabelled: Training samples per epoch that were left out for want of a label.
    """

    records: list[EpochRecord]
    best_epoch: int
    unlabelled: int

    @property
    def seconds_per_epoch(self) -> float:
        """Mean seconds of a training pass."""
        return sum(record.seconds for record in self.records) / len(self.records)


def fit(
    detector: nn.Module,
    inputs: Inputs,
    train_batches: Iterable[Batch],
    val_batches: Iterable[Batch],
    val_examples: Examples,
    config: TrainConfig,
    *,
    device: str = "cpu",
    on_epoch: Callable[[EpochRecord], None] | None = None,
    what: str = "training",
    progress: Progress = no_progress,
) -> FitResult:
    """Train ``detector`` in place and leave the best epoch's weights in it.

    The caller seeds torch (see `seeded`) before building the detector, so that weights and dropout
    follow one seed.

    Args:
        detector: On ``device`` afterwards, in evaluation mode.
        inputs: The detector's arguments of a batch.
        train_batches: Iterated once per epoch, told the epoch before.
        val_batches: Iterated once per epoch.
        val_examples: Labels of the validation samples.
        config: epochs, patience, learning_rate, weight_decay and clip_norm are used.
        device: Where to train.
        on_epoch: Called after every epoch.
        what: Name of the progress bar.
        progress: Draws it.

    Raises:
        DetectorError: No labelled sample, one class in validation, or the loss stopped being
            finite.
    """
    with torch_threads(detector, config.torch_threads):
        return _fit(
            detector,
            inputs,
            train_batches,
            val_batches,
            val_examples,
            config,
            device,
            on_epoch,
            progress(range(config.epochs), config.epochs, what),
        )


def _fit(
    detector: nn.Module,
    inputs: Inputs,
    train_batches: Iterable[Batch],
    val_batches: Iterable[Batch],
    val_examples: Examples,
    config: TrainConfig,
    device: str,
    on_epoch: Callable[[EpochRecord], None] | None,
    epochs: Iterable[int],
) -> FitResult:
    detector.to(device)
    optimizer = torch.optim.AdamW(
        _parameter_groups(detector, config.weight_decay), lr=config.learning_rate
    )
    records: list[EpochRecord] = []
    best_weights: dict[str, Any] = {}
    best_auroc, best_epoch, unlabelled = -1.0, -1, 0
    for epoch in epochs:
        start_epoch(train_batches, epoch)
        started = time.perf_counter()
        loss, labelled, unlabelled = _train_epoch(
            detector, inputs, train_batches, optimizer, config.clip_norm, device, epoch
        )
        seconds = time.perf_counter() - started
        scores = score_batches(detector, inputs, val_batches, device, config.torch_threads)
        val_auroc = auroc(val_examples.known_labels, val_examples.align(scores)[val_examples.known])
        better = val_auroc > best_auroc
        if better:
            best_auroc, best_epoch = val_auroc, epoch
            best_weights = copy.deepcopy(detector.state_dict())
        rate = (labelled + unlabelled) / max(seconds, 1e-9)
        data = getattr(getattr(train_batches, "stats", None), "verdict", "")
        record = EpochRecord(epoch, loss, val_auroc, seconds, rate, better, data)
        records.append(record)
        if on_epoch is not None:
            on_epoch(record)
        if epoch - best_epoch >= config.patience:
            break
    detector.load_state_dict(best_weights)
    detector.eval()
    return FitResult(records, best_epoch, unlabelled)


def score_batches(
    detector: nn.Module,
    inputs: Inputs,
    batches: Iterable[Batch],
    device: str = "cpu",
    threads: int | None = None,
) -> dict[str, float]:
    """Return the logit of every sample by its key; the detector is left in evaluation mode.

    ``threads`` as in `torch_threads`.

    Raises:
        DetectorError: A logit is not finite, or a sample came twice.
    """
    detector.eval()
    keys: list[str] = []
    logits: list[Tensor] = []
    with torch.inference_mode(), torch_threads(detector, threads):
        for batch in batches:
            logits.append(detector(*_moved(inputs(batch), device)))
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


def record_json(record: EpochRecord, detector: str) -> dict[str, Any]:
    """Return ``record`` as a line of ``metrics.jsonl``."""
    return {"detector": detector, **asdict(record)}


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


def _parameter_groups(detector: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the optimiser's groups: matrices decay, gains and biases do not."""
    weights = list(detector.parameters())
    return [
        {"params": [w for w in weights if w.dim() > 1], "weight_decay": weight_decay},
        {"params": [w for w in weights if w.dim() <= 1], "weight_decay": 0.0},
    ]


def _train_epoch(
    detector: nn.Module,
    inputs: Inputs,
    batches: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    clip_norm: float,
    device: str,
    epoch: int,
) -> tuple[float, int, int]:
    """Return (mean loss, labelled samples, unlabelled samples) of one pass."""
    detector.train()
    total = torch.zeros((), dtype=torch.float64, device=device)
    labelled = unlabelled = 0
    for batch in batches:
        known = ~torch.isnan(batch.label)
        count = int(known.sum())
        unlabelled += len(batch) - count
        if count == 0:
            continue
        labelled += count
        logits, penalty = _logits_and_penalty(detector, _moved(inputs(batch), device))
        if count == len(batch):
            target = batch.label.to(device, non_blocking=True)
        else:
            chosen = known.to(logits.device)
            logits = logits[chosen]
            penalty = None if penalty is None else penalty[chosen]
            target = batch.label[known].to(device)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
        if penalty is not None:
            loss = loss + penalty.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(detector.parameters(), clip_norm)
        optimizer.step()
        total += loss.detach() * count
    if labelled == 0:
        raise DetectorError(
            "no training sample has a label; score the traces and pack again with --scores"
        )
    mean = float(total) / labelled
    if not abs(mean) < float("inf"):
        raise DetectorError(
            f"the loss of epoch {epoch} is {mean}; lower the learning rate, or pack again"
        )
    return mean, labelled, unlabelled


def _logits_and_penalty(
    detector: nn.Module, arguments: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor | None]:
    if isinstance(detector, Penalised):
        return detector.forward_with_penalty(*arguments)
    return detector(*arguments), None


def _moved(arguments: tuple[Tensor, ...], device: str) -> tuple[Tensor, ...]:
    return tuple(argument.to(device, non_blocking=True) for argument in arguments)
