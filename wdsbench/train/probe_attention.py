"""Fits the logistic regression on attention features."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wdsbench.detect.attention import HEAD_FEATURES, AttentionLogistic, attention_features
from wdsbench.detect.registry import DetectorShape
from wdsbench.detect.scale import RunningMoments
from wdsbench.records import Batch
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.probe import Labelled, ProbeFit
from wdsbench.train.solvers import ATTENTION_PENALTIES, LogisticSolver, Rows


def fit_on_attention(work: ProbeFit) -> FittedDetector:
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
        shares = work.gather(_read_share(watched))
    everyone = {key: features for share, _ in shares for key, features in share.items()}
    heads = max(heads for _, heads in shares)
    return np.stack([everyone[key] for key in labelled.place]), heads


def _read_share(batches: Iterable[Batch]) -> tuple[dict[str, NDArray[np.float32]], int]:
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
