"""Trials of a search: their suggestion by TPE (optuna), ``search.json``, and their table.

A suggestion depends only on its seed and the earlier trials: each has a new sampler and study. The
first ten are random.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import xxhash

from wdsbench.errors import DetectorError
from wdsbench.files import write_json

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from rich.console import Console

SEARCHES_NAME = "search"
SEARCH_NAME = "search.json"
FORMAT = 1

LEARNING_RATES = (1e-4, 1e-2)
WIDTHS = (16, 32, 64, 128)
DEPTHS = (1, 3)
DROPOUTS = (0.0, 0.6)

# Figure of a failed trial for the sampler, so that it avoids similar settings.
_FAILED_AUROC = 0.0


@dataclass(frozen=True)
class Trial:
    """One trial of a search.

    Attributes:
        number: From 0; trial 0 has the given settings.
        settings: Fields of `TrainConfig` and their values.
        val_auroc: Validation AUROC of the best epoch; None if the fit failed for ``reason``.
        seconds: Duration since the trial started or last resumed.
    """

    number: int
    settings: dict[str, Any]
    val_auroc: float | None
    epochs: int
    seconds: float
    state: Literal["complete", "failed"]
    reason: str = ""


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        trials: All trials in order, also failed ones.
        reason: Reason why the detector cannot be trained on this data; None if it can.
    """

    detector: str
    trials: list[Trial]
    reason: str | None = None

    @property
    def best(self) -> Trial | None:
        """The first trial with the highest validation AUROC; None if there is none."""
        ended = [trial for trial in self.trials if trial.val_auroc is not None]
        return max(ended, key=lambda trial: trial.val_auroc or 0.0, default=None)


def write_search(result: SearchResult, setting: dict[str, Any], path: Path) -> None:
    """Write the trials, and the settings that must not change on resume, to ``path`` atomically."""
    value = {
        "format": FORMAT,
        "detector": result.detector,
        "objective": "val_auroc",
        "setting": setting,
        "trials": [asdict(trial) for trial in result.trials],
        "best": None if result.best is None else asdict(result.best),
    }
    write_json(path, value)


def read_search(path: Path) -> tuple[SearchResult, dict[str, Any]] | None:
    """Return the trials in ``path`` and their settings; None if there is no file.

    Raises:
        DetectorError: It is not valid.
    """
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise ValueError(f"format is {value['format']}; this version reads {FORMAT}")
        trials = [Trial(**trial) for trial in value["trials"]]
        return SearchResult(str(value["detector"]), trials), dict(value["setting"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DetectorError(
            f"{path} is not a search.json of this version ({error!r}); remove it and search again"
        ) from error


def print_search(result: SearchResult, console: Console) -> None:
    """Print the trials as a table, the best in bold, and the reasons of failures."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    best = result.best
    names = list(dict.fromkeys(name for trial in result.trials for name in trial.settings))
    console.print(Text(f"Trials of {result.detector}, on validation"), style="bold")
    if result.trials:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        headings = [name.replace("_", " ") for name in names]
        for heading in ("trial", *headings, "AUROC", "epochs", "seconds"):
            table.add_column(heading, justify="right", overflow="fold")
        for trial in result.trials:
            table.add_row(
                str(trial.number),
                *(f"{trial.settings.get(name, '-')}" for name in names),
                "failed" if trial.val_auroc is None else f"{trial.val_auroc:.3f}",
                str(trial.epochs),
                f"{trial.seconds:.1f}",
                style="bold" if trial is best else "",
            )
        console.print(table)
    for trial in result.trials:
        if trial.reason:
            console.print(Text(f"trial {trial.number}: {trial.reason}"))
    if result.reason is not None:
        console.print(Text(f"{result.detector}: {result.reason}"))
    if best is not None:
        settings = " ".join(f"--{n.replace('_', '-')} {v}" for n, v in best.settings.items())
        console.print(Text(f"Best: trial {best.number} ({settings})"))


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
