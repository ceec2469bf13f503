"""Fits probes: layer, token and penalty are chosen on validation.

With several ranks each reads its share of the samples; all gather the union and fit on it. Rows are
in the order of their keys, so the result does not depend on which rank read which sample. At the
end all ranks use the weights of rank 0, because solvers may differ in the last digit between
machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wdsbench.detect.attention import HEAD_FEATURES, AttentionLogistic, attention_features
from wdsbench.detect.registry import DetectorShape, DetectorSpec, LoaderNeeds
from wdsbench.detect.scale import RunningMoments
from wdsbench.errors import DetectorError
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Batch
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.train.config import TrainConfig
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.ranks import ALONE, Gather
from wdsbench.train.solvers import ATTENTION_PENALTIES, LogisticSolver, Rows
from wdsbench.train.source import Loader

#: Memory budget for states.
MEMORY_BYTES = 1 << 30


#: Opens this rank's batches of a split, with the arguments of `Source.batches`.
OpenSplit = Callable[..., AbstractContextManager[Loader]]


@dataclass(frozen=True)
class Labelled:
    """The labelled samples of a split on all ranks.

    Attributes:
        place: Row of each key; rows are sorted by key.
        labels: float32 ``[n]``.
        longest_answer: Tokens of the longest answer; None if a prompt length is unknown.
    """

    place: dict[str, int]
    labels: NDArray[np.float32]
    longest_answer: int | None
    index: DatasetIndex


@dataclass(frozen=True)
class ProbeFit:
    """Arguments of `fit_probe`, and the labelled samples of train and val."""

    spec: DetectorSpec
    open_split: OpenSplit
    config: TrainConfig
    gather: Gather
    progress: Progress
    memory_bytes: int
    train: Labelled
    val: Labelled

    @property
    def balanced(self) -> bool:
        """True if both classes have the same weight."""
        return self.config.class_weight == "balanced"

    @property
    def index(self) -> DatasetIndex:
        """Index of the data set."""
        return self.train.index


def fit_probe(
    spec: DetectorSpec,
    open_split: OpenSplit,
    config: TrainConfig,
    *,
    gather: Gather = ALONE.gather,
    progress: Progress = no_progress,
    memory_bytes: int = MEMORY_BYTES,
) -> FittedDetector:
    """Return the detector ``spec`` of kind ``probe``, fitted on train and val, on the CPU.

    Sign and threshold are not chosen yet. Samples without a label are not used.

    Args:
        spec: ``probe_logistic``, ``probe_mlp`` or ``attention_logistic``.
        gather: Collects a picklable object of every rank, in the order of ranks. The caller reports
            the failure of a single rank to the others (`Ranks.guarded`).
        memory_bytes: Memory budget for states.

    Raises:
        DetectorError: A member is missing, a state is not finite, or a split has no labelled
            sample.
    """
    from wdsbench.train.probe_states import fit_on_states

    splits = {split: _labelled(open_split, split, gather) for split in ("train", "val")}
    work = ProbeFit(spec, open_split, config, gather, progress, memory_bytes, **splits)
    with torch.random.fork_rng(devices=[]):  # modules draw initial weights
        fitted = fit_on_states(work) if spec.chooses_token else _fit_on_attention(work)
    assert fitted.module is not None
    layers, token, weights = gather((fitted.layers, fitted.token, fitted.module.state_dict()))[0]
    fitted.module.load_state_dict(weights)
    fitted.module.eval()
    return replace(fitted, layers=layers, token=token)


def labelled_keys(labels: Mapping[str, float], split: str) -> list[str]:
    """Return the keys with a label, in order; raise DetectorError if there is none."""
    keys = sorted(key for key, label in labels.items() if not math.isnan(label))
    if not keys:
        raise DetectorError(
            f"no sample of split {split} has a label; score the traces and pack again with --scores"
        )
    return keys


def _labelled(open_split: OpenSplit, split: str, gather: Gather) -> Labelled:
    """Return the labelled samples of a split; reads no states."""
    with open_split(split, LoaderNeeds()) as batches:
        index = batches.index
        shares = gather(_read_labels(batches))
    everyone = {key: label for labels, _ in shares for key, label in labels.items()}
    keys = labelled_keys(everyone, split)
    longest = [answer for _, answer in shares]
    return Labelled(
        place={key: row for row, key in enumerate(keys)},
        labels=np.array([everyone[key] for key in keys], dtype=np.float32),
        longest_answer=None if None in longest else max(answer or 0 for answer in longest),
        index=index,
    )


def _read_labels(batches: Iterable[Batch]) -> tuple[dict[str, float], int | None]:
    """Return labels by key, and the longest answer (None: a prompt length is unknown)."""
    labels: dict[str, float] = {}
    longest: int | None = 0
    for batch in batches:
        labels.update(zip(batch.keys, batch.label.tolist(), strict=True))
        for tokens, prompt in zip(
            batch.token_count.tolist(), batch.prompt_length.tolist(), strict=True
        ):
            longest = None if longest is None or prompt < 0 else max(longest, tokens - prompt)
    return labels, longest


def _fit_on_attention(work: ProbeFit) -> FittedDetector:
    """Return the fitted regression."""
    assert work.spec.build is not None
    train, heads = _read_features(work, "train", work.train)
    val, _ = _read_features(work, "val", work.val)
    shape = DetectorShape(train.shape[1] // heads, HEAD_FEATURES, num_heads=heads)
    module = work.spec.build(shape)
    assert isinstance(module, AttentionLogistic)
    running = RunningMoments()
    running.update(torch.from_numpy(train))
    module.scale.set_moments(*running.finish())
    with torch.inference_mode():
        rows = Rows(
            module.scale(torch.from_numpy(train)).flatten(1).numpy(),
            work.train.labels,
            module.scale(torch.from_numpy(val)).flatten(1).numpy(),
            work.val.labels,
            work.spec.name,
        )
    LogisticSolver(_set_weights, ATTENTION_PENALTIES, work.balanced).fit(rows, module)
    return FittedDetector(
        work.spec, shape, module, layers=work.config.layers, traces=StoredTraces.of(work.index)
    )


def _set_weights(module: nn.Module, weight: Tensor, bias: float) -> None:
    assert isinstance(module, AttentionLogistic)
    module.set_weights(weight, bias)


def _read_features(
    work: ProbeFit, split: str, labelled: Labelled
) -> tuple[NDArray[np.float32], int]:
    """Return float32 ``[n, L * H, HEAD_FEATURES]`` of the labelled samples of all ranks, and H."""
    with work.open_split(split, work.spec.needs) as batches:
        watched = work.progress(batches, None, f"fitting {work.spec.name}, {split}")
        shares = work.gather(_read_features_share(watched))
    everyone = {key: features for share, _ in shares for key, features in share.items()}
    heads = max(heads for _, heads in shares)
    return np.stack([everyone[key] for key in labelled.place]), heads


def _read_features_share(batches: Iterable[Batch]) -> tuple[dict[str, NDArray[np.float32]], int]:
    """Return the features of this rank's samples by key, and H."""
    found: dict[str, NDArray[np.float32]] = {}
    heads = 0
    for batch in batches:
        if len(batch):
            assert batch.sketch is not None, "the loader was asked for sketches"
            heads = batch.sketch[0].shape[1]
            features = attention_features(batch).numpy()
            found.update(zip(batch.keys, features, strict=True))
    return found, heads
