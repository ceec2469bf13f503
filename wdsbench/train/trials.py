"""Trials of a search, in ``search.json`` and as a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wdsbench.errors import DetectorError
from wdsbench.files import write_json

if TYPE_CHECKING:
    from rich.console import Console

SEARCHES_NAME = "search"
SEARCH_NAME = "search.json"
FORMAT = 1


@dataclass(frozen=True)
class Trial:
    """One trial of a search.

    Attributes:
        number: From 0; trial 0 has the given settings.
        settings: Fields of `TrainConfig` and their values.
        val_auroc: Validation AUROC of the best epoch; None if the fit failed.
        epochs: Number of epochs.
        seconds: Duration since the trial started or last resumed.
        state: ``"complete"`` or ``"failed"``.
        reason: Reason of the failure.
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
        detector: Name of the detector.
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
