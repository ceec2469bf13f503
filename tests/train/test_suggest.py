"""Suggestions of a search on closed-form objectives."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from trials import FULL

from wdsbench.train.trials import Trial, sampler_seed, search_space, suggest

SPACE = search_space(depth=True)
SEEDS = range(5) if FULL else (3,)


def reached(settings: dict[str, Any]) -> float:
    """A landscape with its top at learning rate 0.003, width 64, depth 2, dropout 0.2."""
    distance = abs(math.log10(settings["learning_rate"] / 0.003))
    distance += 0.3 * abs(math.log2(settings["hidden"] / 64)) + 0.3 * abs(settings["depth"] - 2)
    return 1 - 0.1 * (distance + abs(settings["dropout"] - 0.2))


def walk(seed: int, trials: int) -> list[Trial]:
    """Search the landscape."""
    given = {"learning_rate": 1e-6, "hidden": 8, "depth": 5, "dropout": 0.9}  # all of it outside
    found = [Trial(0, given, reached(given), 1, 0.1, "complete")]
    for number in range(1, trials):
        settings = suggest(SPACE, found, sampler_seed(seed, "lstm", number))
        found.append(Trial(number, settings, reached(settings), 1, 0.1, "complete"))
    return found


def test_suggestions_follow_from_the_seed_and_stay_inside() -> None:
    found = walk(0, 15)
    assert found == walk(0, 15)
    assert found[1].settings != walk(1, 2)[1].settings
    for trial in found[1:]:
        settings = trial.settings
        assert list(settings) == list(SPACE)
        assert 1e-4 <= settings["learning_rate"] <= 1e-2
        assert settings["hidden"] in (16, 32, 64, 128)
        assert settings["depth"] in (1, 2, 3)
        assert 0 <= settings["dropout"] <= 0.6
        assert settings["dropout"] == float(f"{settings['dropout']:.3g}")


@pytest.mark.trials
def test_suggestions_learn_from_earlier_trials() -> None:
    late, early = [], []
    for seed in SEEDS:
        found = [trial.val_auroc or 0.0 for trial in walk(seed, 41)[1:]]
        early.append(sum(found[:10]) / 10)  # drawn without regard to the others
        late.append(sum(found[-10:]) / 10)
    assert sum(late) / len(SEEDS) > sum(early) / len(SEEDS) + 0.03


def test_a_failed_trial_is_told_to_the_sampler_as_the_worst() -> None:
    found = walk(0, 15)
    failed = [replace(trial, val_auroc=None, state="failed") for trial in found]
    worst = [replace(trial, val_auroc=0.0) for trial in found]
    seed = sampler_seed(0, "lstm", 15)
    assert suggest(SPACE, failed, seed) == suggest(SPACE, worst, seed)
