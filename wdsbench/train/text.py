"""Fits text controls: the terms on train, the penalty on validation.

As probes, every rank reads its share of the texts, all gather the union and fit on it, and use the
weights of rank 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from wdsbench.detect.registry import DetectorShape, DetectorSpec
from wdsbench.detect.text import Terms, TextClassifier, with_terms
from wdsbench.progress import Progress, no_progress
from wdsbench.train.config import TrainConfig
from wdsbench.train.fitted import FittedDetector
from wdsbench.train.probe import OpenSplit, labelled_keys
from wdsbench.train.ranks import ALONE, Gather
from wdsbench.train.solvers import LogisticSolver, Rows

#: Inverse ridge penalties; the values of a text have norm 1 per kind of term.
PENALTIES = (0.3, 3.0, 30.0)


def fit_text(
    spec: DetectorSpec,
    open_split: OpenSplit,
    config: TrainConfig,
    *,
    gather: Gather = ALONE.gather,
    progress: Progress = no_progress,
) -> FittedDetector:
    """Return the control ``spec``, fitted on the labelled samples of train and val, on the CPU.

    Arguments are those of `wdsbench.train.probe.fit_probe`.

    Raises:
        DetectorError: A trace lacks the text, or a split has no labelled sample.
    """
    texts, labels = _read(spec, open_split, "train", gather, progress)
    val_texts, val_labels = _read(spec, open_split, "val", gather, progress)
    module = with_terms(texts)
    rows = Rows(
        _matrix(module.scale, texts),
        labels,
        _matrix(module.scale, val_texts),
        val_labels,
        spec.name,
    )
    solver = LogisticSolver(_set_weights, PENALTIES, config.class_weight == "balanced")
    solver.fit(rows, module)
    weights = gather(module.state_dict())[0]
    module.load_state_dict(weights)
    shape = DetectorShape(1, module.weight.numel())
    return FittedDetector(spec, shape, module.eval())


def _read(
    spec: DetectorSpec, open_split: OpenSplit, split: str, gather: Gather, progress: Progress
) -> tuple[list[str], NDArray[np.float32]]:
    """Return text and label of the labelled samples of all ranks, in the order of their keys."""
    assert spec.inputs is not None
    own: dict[str, tuple[str, float]] = {}
    with open_split(split, spec.needs) as batches:
        for batch in progress(batches, None, f"fitting {spec.name}, {split}"):
            (texts,) = spec.inputs(batch)
            own.update(zip(batch.keys, zip(texts, batch.label.tolist(), strict=True), strict=True))
    everyone = {key: found for share in gather(own) for key, found in share.items()}
    keys = labelled_keys({key: label for key, (_, label) in everyone.items()}, split)
    texts, labels = zip(*(everyone[key] for key in keys), strict=True)
    return list(texts), np.array(labels, np.float32)


def _matrix(terms: Terms, texts: Sequence[str]) -> csr_matrix:
    """Return the values of each text's terms, float64 ``[n, F]``."""
    rows, places, values = terms.features(texts)
    return csr_matrix((values, (rows, places)), shape=(len(texts), terms.hashes.numel()))


def _set_weights(module: nn.Module, weight: Tensor, bias: float) -> None:
    assert isinstance(module, TextClassifier)
    module.set_weights(weight, bias)
