"""What commands share of the terminal: progress bars, JSON on the last line, comma lists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")

#: Bars and remarks go to stderr, so that stdout holds results alone.
stderr = Console(stderr=True)
stdout = Console()


def bar(items: Iterable[T], total: int | None, what: str) -> Iterable[T]:
    """Yield ``items`` under a progress bar; where nobody watches, say once what is being done."""
    if not stderr.is_terminal:
        stderr.print(f"{what} ...", highlight=False)
        yield from items
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True) as progress:
        yield from progress.track(items, total=total, description=what)


def print_json(report: Any) -> None:
    """Print a report as one line of JSON, for machines."""
    print(json.dumps(report, sort_keys=True))


def words(text: str) -> list[str]:
    """Return the entries of a comma list: ``"lstm,gnn"`` -> ``["lstm", "gnn"]``."""
    return [word.strip() for word in text.split(",") if word.strip()]


def all_words(texts: Sequence[str]) -> list[str]:
    """Return the entries of an option that may be given several times, each a comma list."""
    return [word for text in texts for word in words(text)]
