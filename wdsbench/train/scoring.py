"""Scores of a module over batches, and the state of torch (seed, threads) while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn

from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.train.config import TrainConfig
from wdsbench.train.step import Inputs, autocast, moved, used_samples

# Smaller modules train as fast with one torch thread as with many, and much faster on a busy
# machine, where each of some hundred operators per step waits for the slowest thread. Measured on
# two cores, LSTM of 200,000 weights, batch 64: 10 ms per step with one thread; 1,160 ms with two
# while other processes used both cores.
SMALL_WEIGHTS = 1_000_000


def score_batches(
    detector: nn.Module,
    inputs: Inputs,
    batches: Iterable[Batch],
    device: str = "cpu",
    threads: int | None = None,
    config: TrainConfig | None = None,
) -> dict[str, float]:
    """Return the logit of every sample by key; leaves the detector in evaluation mode. Only the
    precision of ``config`` is used.

    Raises:
        DetectorError: A logit is not finite, or a sample occurs twice.
    """
    keys: list[str] = []
    logits: list[Tensor] = []

    def take(batch: Batch, found: Tensor) -> None:
        logits.append(found)
        keys.extend(batch.keys)

    each_score(detector, inputs, batches, take, device, threads, config)
    values: list[float] = torch.cat(logits).double().cpu().tolist() if logits else []
    scores = unique_scores(keys, values)
    for key, value in scores.items():
        _require_finite(key, value)
    return scores


def each_score(
    detector: nn.Module,
    inputs: Inputs,
    batches: Iterable[Batch],
    take: Callable[[Batch, Tensor], None],
    device: str = "cpu",
    threads: int | None = None,
    config: TrainConfig | None = None,
) -> None:
    """Call ``take`` with every batch and its scores, float32 ``[B]``; as `score_batches`, without
    its checks.
    """
    detector.eval()
    with torch.inference_mode(), torch_threads(detector, threads):
        for batch in batches:
            if not len(batch):
                continue  # another rank has one sample more
            with autocast(config or TrainConfig(), device):
                found = detector(*moved(inputs(batch), device))
            take(batch, found.float())


def sum_errors(
    detector: nn.Module,
    inputs: Inputs,
    batches: Iterable[Batch],
    device: str = "cpu",
    threads: int | None = None,
    config: TrainConfig | None = None,
) -> tuple[float, int]:
    """Return the sum of the errors of a detector that reconstructs, over the samples without label
    1, and their number; arguments and errors as in `score_batches`, memory is constant.
    """
    total, count = 0.0, 0

    def take(batch: Batch, found: Tensor) -> None:
        nonlocal total, count
        errors = normal_errors(batch, found)
        total += float(errors.sum())
        count += errors.size

    each_score(detector, inputs, batches, take, device, threads, config)
    return total, count


def normal_errors(batch: Batch, found: Tensor) -> NDArray[np.float64]:
    """Return the errors ``found`` of the samples without label 1, float64 ``[n]``; raise
    DetectorError if one is not finite.
    """
    used = used_samples(batch.label, reconstructs=True).cpu().numpy()
    errors: NDArray[np.float64] = found.double().cpu().numpy()
    for place in np.flatnonzero(~np.isfinite(errors)):
        _require_finite(batch.keys[place], float(errors[place]))
    normal: NDArray[np.float64] = errors[used]
    return normal


def _require_finite(key: str, value: float) -> None:
    if not abs(value) < float("inf"):
        raise DetectorError(
            f"sample {key} has score {value}; it holds values that are not finite: extract its"
            " trace again (or check its image) and pack again"
        )


def unique_scores(keys: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    """Return scores by key; raise DetectorError if a key occurs twice."""
    pairs = list(zip(keys, values, strict=True))
    scores = dict(pairs)
    if len(scores) != len(pairs):
        raise DetectorError(f"{len(pairs) - len(scores)} samples occur twice; pack again")
    return scores


def merged(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the scores of all ranks; raise DetectorError if two have the same sample."""
    pairs = [pair for part in parts for pair in part.items()]
    return unique_scores((key for key, _ in pairs), (value for _, value in pairs))


@contextlib.contextmanager
def seeded(seed: int, name: str, device: str = "cpu") -> Iterator[None]:
    """Seed torch for one detector; restore the caller's generators afterwards.

    The seed depends on the detector's name, so its numbers do not depend on which other detectors
    are trained in the run.
    """
    devices = [torch.device(device)] if device != "cpu" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(xxhash.xxh3_64_intdigest(f"{seed}:{name}".encode()) >> 1)
        yield


@contextlib.contextmanager
def torch_threads(detector: nn.Module, threads: int | None = None) -> Iterator[None]:
    """Use ``threads`` torch threads in the block; None: one for a small detector, no change for a
    large one.
    """
    before = torch.get_num_threads()
    weights = sum(weight.numel() for weight in detector.parameters())
    torch.set_num_threads(threads or (1 if weights < SMALL_WEIGHTS else before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
