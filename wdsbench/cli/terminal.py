"""Output that the commands share: lines, tables, progress bars, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
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
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

#: Words for label 1 and label 0.
TRACE_CLASSES = ("hallucinated", "right")
IMAGE_CLASSES = ("anomalous", "normal")

#: Progress bars and notes go to stderr, results to stdout.
stderr = Console(stderr=True)
stdout = Console()


def bar(items: Iterable[T], total: int | None, what: str) -> Iterable[T]:
    """Yield ``items`` under a progress bar; without a terminal, print one line instead."""
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


def say(line: str, console: Console = stdout) -> None:
    """Print one line as it is: no markup, no colours, no line breaks."""
    console.print(line, highlight=False, soft_wrap=True, markup=False)


def say_notes(notes: Mapping[str, int]) -> None:
    """Print a note for each text whose count is not zero: ``3`` gives ``note: 3 <text>``."""
    for text, count in notes.items():
        if count:
            say(f"  note: {count} {text}")


def say_rest(count: int, shown: int, what: str = "") -> None:
    """Print how many of ``count`` items were not shown."""
    if count > shown:
        say(f"  and {count - shown} more{what and f' {what}'}; --json lists all")


def say_splits(splits: Mapping[Any, Any], classes: tuple[str, str] = TRACE_CLASSES) -> None:
    """Print the samples and classes (label 1, label 0) of each split of an index."""
    for name, entry in splits.items():
        say(
            f"  {name:5} {entry.samples:7} samples: {entry.hallucinated} {classes[0]},"
            f" {entry.right} {classes[1]}, {entry.unlabelled} unlabelled"
            f"{'' if entry.samples else ' (empty)'}"
        )


def print_table(title: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table without lines, columns of numbers aligned to the right; no rows: nothing."""
    if not rows:
        return
    if title:
        stdout.print()
    table = Table(
        title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for place, name in enumerate(names):
        numbers = place > 0 and all(isinstance(row[place], int | float) for row in rows)
        table.add_column(
            name, justify="right" if numbers else "left", overflow="fold", no_wrap=not title
        )
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    stdout.print(table)


def print_json(report: Any) -> None:
    """Print a report as one line of JSON."""
    print(json.dumps(report, sort_keys=True))


def size_text(size: float) -> str:
    """Return a number of bytes with its unit; GB is 1e9."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"


def words(text: str) -> list[str]:
    """Return the entries of a comma list: ``"lstm,gnn"`` -> ``["lstm", "gnn"]``."""
    return [word.strip() for word in text.split(",") if word.strip()]
