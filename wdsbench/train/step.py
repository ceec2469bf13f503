"""One step of gradient descent, over the samples of all ranks.

The loss is the mean over the labelled samples of the step, whichever rank has them: every rank sums
over its own, the sums travel with the gradients in one message, and all divide by the same number.
So a step over N ranks is the step one rank would take with all their samples, and ranks with fewer
samples, or none, are no special case. Signals (save, stop) ride in the same message, so that all
ranks act on them after the same step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from wdsbench.errors import DetectorError, RankError
from wdsbench.records import Batch
from wdsbench.train.config import TrainConfig
from wdsbench.train.ranks import ALONE, Ranks

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
class Signals:
    """What some rank wants of all: the state saved, the fit stopped."""

    save: bool = False
    stop: bool = False


@dataclass(frozen=True)
class Taken:
    """A step that was taken.

    Attributes:
        loss: float64 scalar: summed over the labelled samples of all ranks.
        labelled: Their number.
        unlabelled: Samples of all ranks without a label.
        signals: Of any rank.
    """

    loss: Tensor
    labelled: int
    unlabelled: int
    signals: Signals


class Stepper:
    """Takes steps with AdamW.

    Attributes:
        optimizer: Its state is part of what a fit goes on from.
    """

    def __init__(
        self,
        detector: nn.Module,
        inputs: Inputs,
        config: TrainConfig,
        device: str = "cpu",
        *,
        ranks: Ranks = ALONE,
        positive_weight: float | None = None,
        total_steps: int | None = None,
    ) -> None:
        """Prepare to train ``detector``, which is on ``device``.

        Args:
            detector: What is trained.
            inputs: Its arguments of a batch.
            config: Settings.
            device: Where it is.
            ranks: Who trains together.
            positive_weight: Weight of hallucinated samples in the loss; None: 1.
            total_steps: Length of the schedule; needed for ``cosine``.
        """
        if config.schedule == "cosine" and not total_steps:
            raise DetectorError(
                "schedule cosine needs to know its length; pass --max-steps, or a loader with len()"
            )
        self.optimizer = torch.optim.AdamW(
            _parameter_groups(detector, config.weight_decay), lr=config.learning_rate
        )
        self._detector = detector
        self._inputs = inputs
        self._config = config
        self._device = device
        self._ranks = ranks
        self._total_steps = total_steps or 0
        self._weight = (
            None if positive_weight is None else torch.tensor(positive_weight, device=device)
        )
        forward: Any = detector
        if isinstance(detector, Penalised):
            forward = detector.forward_with_penalty
        # Batches differ in size, graphs in every axis: without `dynamic` each would be compiled.
        self._forward = torch.compile(forward, dynamic=True) if config.compile else forward

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of step ``step``, from 0."""
        base = self._config.learning_rate
        if self._config.schedule == "constant":
            return base
        return base * 0.5 * (1 + math.cos(math.pi * min(step / self._total_steps, 1.0)))

    def step(self, batch: Batch, number: int, signals: Signals) -> Taken:
        """Take step ``number`` with this rank's ``batch``, which may be empty.

        Nothing is done where no rank has a labelled sample.
        """
        known = ~torch.isnan(batch.label)
        count = int(known.sum())
        unlabelled = len(batch) - count
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(number)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._own_loss(batch, known, count) if count else None
        if self._ranks.count == 1:
            if loss is None:
                return Taken(torch.zeros((), dtype=torch.float64), 0, unlabelled, signals)
            (loss / count).backward()  # type: ignore[no-untyped-call]
            found = Taken(loss.detach().double(), count, unlabelled, signals)
        else:
            if loss is not None:
                loss.backward()  # type: ignore[no-untyped-call]
            found = self._add_up(loss, count, unlabelled, signals)
        if found.labelled:
            nn.utils.clip_grad_norm_(self._detector.parameters(), self._config.clip_norm)
            self.optimizer.step()
        return found

    def _own_loss(self, batch: Batch, known: Tensor, count: int) -> Tensor:
        """Return the summed loss of this rank's labelled samples.

        Raises:
            DetectorError: They cannot be used; alone. RankError: likewise, on several ranks: the
                others wait for gradients and hear of nothing else.
        """
        try:
            return self._summed_loss(batch, known, count)
        except DetectorError as error:
            if self._ranks.count == 1:
                raise
            raise RankError(f"rank {self._ranks.rank} cannot take its step: {error}") from error

    def _summed_loss(self, batch: Batch, known: Tensor, count: int) -> Tensor:
        arguments = moved(self._inputs(batch), self._device)
        with autocast(self._config, self._device):
            found = self._forward(*arguments)
        logits, penalty = found if isinstance(found, tuple) else (found, None)
        logits = logits.float()
        if count == len(batch):
            target = batch.label.to(self._device, non_blocking=True)
        else:
            chosen = known.to(logits.device)
            logits = logits[chosen]
            penalty = None if penalty is None else penalty[chosen]
            target = batch.label[known].to(self._device)
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits, target, pos_weight=self._weight, reduction="sum"
        )
        return loss if penalty is None else loss + penalty.float().sum()

    def _add_up(self, loss: Tensor | None, count: int, unlabelled: int, signals: Signals) -> Taken:
        """Make gradients, loss, counts and signals those of all ranks."""
        weights = [w for w in self._detector.parameters() if w.requires_grad]
        tail = torch.tensor(
            [
                0.0 if loss is None else float(loss.detach()),
                count,
                unlabelled,
                signals.save,
                signals.stop,
            ],
            dtype=torch.float32,
        )
        parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        message = torch.cat([*(part.reshape(-1).float() for part in parts), tail.to(self._device)])
        self._ranks.add(message)
        told: list[float] = message[-tail.numel() :].tolist()
        total, labelled = told[0], int(told[1])
        start = 0
        for weight in weights:
            part = message[start : start + weight.numel()].view_as(weight) / max(labelled, 1)
            weight.grad = part.to(weight.dtype)
            start += weight.numel()
        heard = Signals(told[3] > 0, told[4] > 0)
        return Taken(torch.tensor(total, dtype=torch.float64), labelled, int(told[2]), heard)


def moved(arguments: tuple[Tensor, ...], device: str) -> tuple[Tensor, ...]:
    """Return tensors on ``device``."""
    return tuple(argument.to(device, non_blocking=True) for argument in arguments)


def autocast(config: TrainConfig, device: str) -> contextlib.AbstractContextManager[Any]:
    """Return the block in which operators run in ``config.precision``."""
    if config.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


def balanced_weight(positives: int, negatives: int) -> float:
    """Return the weight of a hallucinated sample with which both classes weigh the same."""
    if not positives or not negatives:
        raise DetectorError(
            f"class_weight balanced: {positives} hallucinated, {negatives} right training samples;"
            " both classes are needed"
        )
    return negatives / positives


def _parameter_groups(detector: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the optimiser's groups: matrices decay, gains and biases do not."""
    weights = list(detector.parameters())
    return [
        {"params": [w for w in weights if w.dim() > 1], "weight_decay": weight_decay},
        {"params": [w for w in weights if w.dim() <= 1], "weight_decay": 0.0},
    ]
