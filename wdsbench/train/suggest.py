"""Suggests the next setting of a search, by TPE (optuna).

A suggestion depends only on its seed and the earlier trials: each has a new sampler and study. The
first ten are random.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import xxhash

from wdsbench.train.trials import Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LEARNING_RATES = (1e-4, 1e-2)
WIDTHS = (16, 32, 64, 128)
DEPTHS = (1, 3)
DROPOUTS = (0.0, 0.6)

# Figure of a failed trial for the sampler, so that it avoids similar settings.
_FAILED_AUROC = 0.0


def search_space(*, depth: bool) -> dict[str, BaseDistribution]:
    """Return the search space by field of `TrainConfig`, with or without ``depth``.

    Weight decay is not searched: a step shrinks weights by learning rate times weight decay, so the
    learning rate changes both.
    """
    from optuna import distributions

    space: dict[str, BaseDistribution] = {
        "learning_rate": distributions.FloatDistribution(*LEARNING_RATES, log=True),
        "hidden": distributions.CategoricalDistribution(WIDTHS),
        "dropout": distributions.FloatDistribution(*DROPOUTS),
    }
    if depth:
        space["depth"] = distributions.IntDistribution(*DEPTHS)
    return space


def sampler_seed(seed: int, detector: str, number: int) -> int:
    """Return the seed of the sampler that suggests trial ``number``, in ``range(2**32)``."""
    return xxhash.xxh3_64_intdigest(f"{seed}:{detector}:trial {number}".encode()) >> 32


def suggest(
    space: dict[str, BaseDistribution], earlier: Sequence[Trial], seed: int
) -> dict[str, Any]:
    """Return the settings to try after the trials ``earlier``.

    Floats are rounded to three digits, so that they can be typed again.
    """
    import optuna

    with _quiet_optuna():
        sampler = optuna.samplers.TPESampler(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in earlier:
        # The given setting may be outside the search space.
        inside = {
            name: value
            for name, value in trial.settings.items()
            if name in space and _is_inside(space[name], value)
        }
        study.add_trial(
            optuna.trial.create_trial(
                params=inside,
                distributions={name: space[name] for name in inside},
                value=_FAILED_AUROC if trial.val_auroc is None else trial.val_auroc,
            )
        )
    found = study.ask(space).params
    return {
        name: float(f"{value:.3g}") if isinstance(value, float) else value
        for name, value in found.items()
    }


def _is_inside(distribution: BaseDistribution, value: Any) -> bool:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return bool(distribution.low <= value <= distribution.high)


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Suppress the log messages of optuna in the block."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
