"""Solvers of probes: ridge logistic regression, and gradient descent on a small network.

Each takes the standardised inputs of one candidate and returns weights and validation AUROC. All
candidates are *screened* with one cheap fit; the best ones are fitted with every penalty.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from wdsbench.detect.probe import MLPProbe
from wdsbench.detect.registry import DetectorShape
from wdsbench.train.metrics import auroc
from wdsbench.train.scoring import seeded, torch_threads
from wdsbench.train.step import parameter_groups

# Inverse ridge penalties. With standardised inputs, hundreds of features and few thousand samples,
# stronger penalties than scikit-learn's default of 1 generalise better.
PENALTIES = (0.003, 0.03, 0.3)
SCREEN_PENALTY = 0.03
# Attention has thousands of correlated features: stronger penalties.
ATTENTION_PENALTIES = (0.0003, 0.003, 0.03, 0.3)
# Enough for the order of samples; the last digits of the weights do not matter.
ITERATIONS = 300

# Weight decays of AdamW; a step shrinks weights by LEARNING_RATE times this.
WEIGHT_DECAYS = (0.1, 1.0)
SCREEN_WEIGHT_DECAY = 1.0
LEARNING_RATE = 2e-3
MLP_BATCH = 64
# Minimum steps between two validations; with few samples this is more than one epoch.
TURN_STEPS = 16
MLP_TURNS, MLP_PATIENCE = 40, 6
# Screening uses every n-th sample in the order of keys, so that its cost is bounded.
SCREEN_TURNS, SCREEN_SAMPLES = 6, 4096


@dataclass(frozen=True)
class Rows:
    """Standardised inputs of a candidate, samples in the order of their keys.

    Inputs are float32 ``[n, F]``, for `LogisticSolver` also a sparse matrix; labels float32
    ``[n]``; ``name`` seeds the random numbers.
    """

    train: Any
    train_labels: NDArray[np.float32]
    val: Any
    val_labels: NDArray[np.float32]
    name: str


@dataclass(frozen=True)
class LogisticSolver:
    """Ridge logistic regression.

    Attributes:
        set_weights: Function of (module, weight float64 ``[F]``, bias).
        penalties: Inverse penalties that `fit` chooses from.
        balanced: True if both classes have the same weight.
    """

    set_weights: Callable[[nn.Module, Tensor, float], None]
    penalties: tuple[float, ...] = PENALTIES
    balanced: bool = False

    def screen(self, rows: Rows) -> float:
        """Return the validation AUROC at `SCREEN_PENALTY`."""
        return self._solve(rows, SCREEN_PENALTY)[0]

    def fit(self, rows: Rows, module: nn.Module) -> float:
        """Load the weights with the best validation AUROC into ``module``, except its scale, and
        return that AUROC; among equal penalties the strongest is chosen.
        """
        best = -1.0
        for penalty in self.penalties:
            reached, weight, bias = self._solve(rows, penalty)
            if reached > best:
                best = reached
                self.set_weights(module, weight, bias)
        return best

    def _solve(self, rows: Rows, penalty: float) -> tuple[float, Tensor, float]:
        weights = "balanced" if self.balanced else None
        model = LogisticRegression(C=penalty, max_iter=ITERATIONS, class_weight=weights)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(rows.train, rows.train_labels)
        reached = auroc(rows.val_labels, model.decision_function(rows.val))
        weight = torch.from_numpy(np.asarray(model.coef_[0], dtype=np.float64))
        return reached, weight, float(model.intercept_[0])


@dataclass(frozen=True)
class MLPSolver:
    """AdamW on `MLPProbe`, stopped early on validation AUROC. ``seed`` and the candidate's name
    determine weights, order and dropout.
    """

    shape: DetectorShape
    seed: int
    balanced: bool = False

    def screen(self, rows: Rows) -> float:
        """Return the best validation AUROC of a few turns over some of the samples."""
        step = -(-len(rows.train) // SCREEN_SAMPLES)
        some = replace(rows, train=rows.train[::step], train_labels=rows.train_labels[::step])
        probe = MLPProbe(self.shape)
        return self._descend(some, probe, SCREEN_WEIGHT_DECAY, SCREEN_TURNS)

    def fit(self, rows: Rows, module: nn.Module) -> float:
        """Do the same over weight decays and turns."""
        assert isinstance(module, MLPProbe)
        best, best_weights = -1.0, module.units.state_dict()
        for decay in WEIGHT_DECAYS:
            reached = self._descend(rows, module, decay, MLP_TURNS)
            if reached > best:
                best, best_weights = reached, copy.deepcopy(module.units.state_dict())
        module.units.load_state_dict(best_weights)
        return best

    def _descend(self, rows: Rows, probe: MLPProbe, decay: float, turns: int) -> float:
        """Train ``probe`` (except its scale) from new weights, load the best weights and return
        their validation AUROC.
        """
        inputs, labels = torch.from_numpy(rows.train), torch.from_numpy(rows.train_labels)
        val = torch.from_numpy(rows.val)
        weights = _class_weights(labels) if self.balanced else torch.ones_like(labels)
        best, best_turn, best_weights = -1.0, 0, probe.units.state_dict()
        with seeded(self.seed, rows.name), torch_threads(probe):
            for layer in probe.units:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
            groups = parameter_groups(probe.units, decay)
            # A third of a step is the optimiser; fused, half of that.
            optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, fused=True)
            for turn in range(turns):
                probe.train()
                for chosen in _draws(len(labels)):
                    logits = probe.of_standardised(inputs[chosen])
                    loss = nn.functional.binary_cross_entropy_with_logits(
                        logits, labels[chosen], weight=weights[chosen]
                    )
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                probe.eval()
                with torch.inference_mode():
                    reached = auroc(rows.val_labels, probe.of_standardised(val).numpy())
                if reached > best:
                    best, best_turn = reached, turn
                    best_weights = copy.deepcopy(probe.units.state_dict())
                elif turn - best_turn >= MLP_PATIENCE:
                    break
        probe.units.load_state_dict(best_weights)
        return best


Solver = LogisticSolver | MLPSolver


def _draws(count: int) -> Iterator[Tensor]:
    """Yield the sample indices of one turn's steps."""
    steps, per_epoch = 0, -(-count // MLP_BATCH)
    while steps < max(TURN_STEPS, per_epoch):
        for chosen in torch.split(torch.randperm(count), MLP_BATCH):
            yield chosen
            steps += 1


def _class_weights(labels: Tensor) -> Tensor:
    """Return balanced sample weights of mean 1; ones if there is only one class."""
    share = labels.mean()
    if share in (0, 1):
        return torch.ones_like(labels)
    return torch.where(labels == 1, 0.5 / share, 0.5 / (1 - share))
