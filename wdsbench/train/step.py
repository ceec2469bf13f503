"""One step of gradient descent, over the samples of all ranks.

The loss is the mean over the samples of all ranks that are used (see `used_samples`): every rank
sums over its own, the sums are reduced with the gradients in one message, and all ranks divide by
the same number. A step over N ranks therefore equals the step of one rank with all samples, also if
a rank has fewer samples or none. Signals (save, stop) are part of the same message, so that all
ranks act after the same step.
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

#: Arguments of a detector: tensors, of controls strings.
Inputs = Callable[[Batch], tuple[Any, ...]]


@runtime_checkable
class Penalised(Protocol):
    """A detector with a penalty that training adds to the cross-entropy."""

    def forward_with_penalty(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return (logits, penalty), float32 ``[B]`` each.

        The penalty is per sample, so that unlabelled samples can be excluded.
        """
        ...


@dataclass(frozen=True)
class Signals:
    """Requests of any rank to all ranks: save the state, stop the fit."""

    save: bool = False
    stop: bool = False


@dataclass(frozen=True)
class StepResult:
    """Over all ranks: the summed loss of the samples used (float64 scalar), the numbers of samples
    used and left out, and the requests.
    """

    loss: Tensor
    used: int
    left_out: int
    signals: Signals


class Stepper:
    """Runs steps of AdamW; the state of ``optimizer`` is part of a saved fit."""

    def __init__(
        self,
        detector: nn.Module,
        inputs: Inputs,
        config: TrainConfig,
        device: str = "cpu",
        *,
        ranks: Ranks = ALONE,
        positive_weight: float | None = None,
        reconstructs: bool = False,
        total_steps: int | None = None,
    ) -> None:
        """Prepare to train ``detector``, which is on ``device``.

        Args:
            positive_weight: Loss weight of hallucinated samples; None: 1.
            reconstructs: The detector returns reconstruction errors, which are the loss.
            total_steps: Length of the schedule, required for ``cosine``.
        """
        if config.schedule == "cosine" and not total_steps:
            raise DetectorError("schedule cosine needs the number of steps; pass --max-steps")
        # Fused, a step of the autoencoder's 8.6 M weights takes 24 ms instead of 180 (one core).
        # The small detectors keep the other form, whose last digits differ.
        self.optimizer = torch.optim.AdamW(
            parameter_groups(detector, config.weight_decay),
            lr=config.learning_rate,
            fused=reconstructs or None,
        )
        self._detector = detector
        self._inputs = inputs
        self._config = config
        self._device = device
        self._ranks = ranks
        self._reconstructs = reconstructs
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

    def step(self, batch: Batch, number: int, signals: Signals) -> StepResult:
        """Run step ``number`` with this rank's ``batch``, which may be empty.

        Has no effect if no rank has a sample that is used.
        """
        used = used_samples(batch.label, self._reconstructs)
        count = int(used.sum())
        left_out = len(batch) - count
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(number)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._own_loss(batch, used, count) if count else None
        if self._ranks.count == 1:
            if loss is None:
                return StepResult(torch.zeros((), dtype=torch.float64), 0, left_out, signals)
            (loss / count).backward()  # type: ignore[no-untyped-call]
            found = StepResult(loss.detach().double(), count, left_out, signals)
        else:
            if loss is not None:
                loss.backward()  # type: ignore[no-untyped-call]
            found = self._add_up(loss, count, left_out, signals)
        if found.used:
            nn.utils.clip_grad_norm_(self._detector.parameters(), self._config.clip_norm)
            self.optimizer.step()
        return found

    def _own_loss(self, batch: Batch, used: Tensor, count: int) -> Tensor:
        """Return the summed loss of this rank's samples that are ``used``.

        With several ranks a DetectorError becomes a RankError, as the others wait for gradients.
        """
        try:
            return self._summed_loss(batch, used, count)
        except DetectorError as error:
            if self._ranks.count == 1:
                raise
            raise RankError(f"rank {self._ranks.rank} cannot run its step: {error}") from error

    def _summed_loss(self, batch: Batch, used: Tensor, count: int) -> Tensor:
        arguments = moved(self._inputs(batch), self._device)
        with autocast(self._config, self._device):
            found = self._forward(*arguments)
        if self._reconstructs:
            errors: Tensor = found[used.to(found.device)].sum()
            return errors
        logits, penalty = found if isinstance(found, tuple) else (found, None)
        logits = logits.float()
        if count == len(batch):
            target = batch.label.to(self._device, non_blocking=True)
        else:
            chosen = used.to(logits.device)
            logits = logits[chosen]
            penalty = None if penalty is None else penalty[chosen]
            target = batch.label[used].to(self._device)
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits, target, pos_weight=self._weight, reduction="sum"
        )
        return loss if penalty is None else loss + penalty.float().sum()

    def _add_up(
        self, loss: Tensor | None, count: int, left_out: int, signals: Signals
    ) -> StepResult:
        """Sum gradients, loss, counts and signals over all ranks."""
        weights = [w for w in self._detector.parameters() if w.requires_grad]
        own_loss = 0.0 if loss is None else float(loss.detach())
        values = (own_loss, count, left_out, signals.save, signals.stop)
        tail = torch.tensor(values, dtype=torch.float32)
        parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        message = torch.cat([*(part.reshape(-1).float() for part in parts), tail.to(self._device)])
        self._ranks.add(message)
        sums: list[float] = message[-tail.numel() :].tolist()
        total, used = sums[0], int(sums[1])
        start = 0
        for weight in weights:
            part = message[start : start + weight.numel()].view_as(weight) / max(used, 1)
            weight.grad = part.to(weight.dtype)
            start += weight.numel()
        signals = Signals(sums[3] > 0, sums[4] > 0)
        return StepResult(torch.tensor(total, dtype=torch.float64), used, int(sums[2]), signals)


def used_samples(labels: Tensor, reconstructs: bool) -> Tensor:
    """Return a mask of the samples a fit uses: those with a label, or, for a detector that
    reconstructs, those without label 1.
    """
    return labels != 1 if reconstructs else ~torch.isnan(labels)


def moved(arguments: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """Return the tensors among ``arguments`` on ``device``, and the others as they are."""
    return tuple(
        argument.to(device, non_blocking=True) if isinstance(argument, Tensor) else argument
        for argument in arguments
    )


def autocast(config: TrainConfig, device: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which operators run in ``config.precision``."""
    if config.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


def balanced_weight(positives: int, negatives: int) -> float:
    """Return the loss weight of hallucinated samples that balances the classes."""
    if not positives or not negatives:
        raise DetectorError(
            f"class_weight balanced: {positives} hallucinated, {negatives} right training samples;"
            " both classes are needed"
        )
    return negatives / positives


def parameter_groups(detector: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the optimiser's groups: matrices decay, gains and biases do not."""
    weights = list(detector.parameters())
    return [
        {"params": [w for w in weights if w.dim() > 1], "weight_decay": weight_decay},
        {"params": [w for w in weights if w.dim() <= 1], "weight_decay": 0.0},
    ]
