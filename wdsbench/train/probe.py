"""Fits the logistic probe: one logistic regression per layer, the layer chosen on validation.

One layer's states are in memory at a time: ``n * D`` float32 (1,000 traces of a 7B model: 16 MB).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from wdsbench.detect.probe import LogisticProbe
from wdsbench.detect.scale import Standardise
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Batch
from wdsbench.train.metrics import auroc

# Inverse ridge penalties tried per layer. Inputs have unit spread; with hundreds of features and a
# few thousand samples stronger penalties than scikit-learn's default of 1 are what generalises.
PENALTIES = (0.003, 0.03, 0.3)
# Enough for the order of samples to settle; the last digits of the weights do not matter.
ITERATIONS = 300

OpenSplit = Callable[[str], AbstractContextManager[Iterable[Batch]]]


def fit_probe(
    probe: LogisticProbe, open_split: OpenSplit, progress: Progress = no_progress
) -> float:
    """Fit ``probe`` in place and return the validation AUROC of the layer and penalty chosen.

    Args:
        probe: Its scale already fitted; on the CPU.
        open_split: Context manager of the batches of ``"train"`` or ``"val"``.
        progress: Draws a bar over layers.
    """
    num_layers = probe.scale.mean.shape[0]
    best = -1.0
    for layer in progress(range(num_layers), num_layers, "fitting the logistic probe"):
        with open_split("train") as batches:
            train_states, train_labels = _layer_states(batches, probe.scale, layer)
        with open_split("val") as batches:
            val_states, val_labels = _layer_states(batches, probe.scale, layer)
        for penalty in PENALTIES:
            model = LogisticRegression(C=penalty, max_iter=ITERATIONS)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(train_states, train_labels)
            reached = auroc(val_labels, model.decision_function(val_states))
            if reached > best:
                best = reached
                weight = torch.from_numpy(np.asarray(model.coef_[0], dtype=np.float64))
                probe.set_weights(layer, weight, float(model.intercept_[0]))
    return best


def _layer_states(
    batches: Iterable[Batch], scale: Standardise, layer: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return standardised states float32 ``[n, D]`` and labels ``[n]``, labelled samples only."""
    states: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.float32]] = []
    for batch in batches:
        assert batch.hidden is not None, "the loader was not asked for hidden states"
        label = batch.label.cpu()
        known = ~torch.isnan(label)
        x = batch.hidden[:, layer].cpu()[known]
        layers = torch.full((x.shape[0],), layer)
        states.append(scale.rows(x, layers).numpy())
        labels.append(label[known].numpy().copy())
    return np.concatenate(states), np.concatenate(labels)
