"""Results as a table: on the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wdsbench.files import write_whole
from wdsbench.train.results import DetectorResult, Difference, Results

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_COLUMNS = (
    "detector",
    "AUROC",
    "AUPRC",
    "F1",
    "accuracy",
    "FPR@95",
    "ECE",
    "vs logprob_mean",
    "n_pos/n_neg",
)

#: Characters that all columns need side by side; on less they stand in two tables.
_WIDE = 120
_NARROW_COLUMNS = (
    ("detector", "AUROC", "vs logprob_mean", "n_pos/n_neg"),
    ("detector", "AUPRC", "F1", "accuracy", "FPR@95", "ECE"),
)


def results_table(results: Results, columns: Sequence[str] = _COLUMNS) -> Table:
    """Return the detectors' figures as a table, the highest AUROC in bold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        # A figure that does not fit is folded, never cut.
        justify: Literal["left", "right"] = "left" if column == "detector" else "right"
        table.add_column(column, justify=justify, overflow="fold")
    top = max((result.auroc for result in results.detectors.values()), default=None)
    for name, result in results.detectors.items():
        style = "bold" if result.auroc == top else ""
        cells = dict(zip(_COLUMNS, _cells(name, result), strict=True))
        table.add_row(*(Text(cells[column]) for column in columns), style=style)
    return table


def print_results(results: Results, console: Console) -> None:
    """Print the table (two where the console is narrow), and each detector that was not available
    with its reason.
    """
    from rich.text import Text

    console.print("Detectors on the test split", style="bold")
    for columns in (_COLUMNS,) if console.width >= _WIDE else _NARROW_COLUMNS:
        console.print(results_table(results, columns))
    console.print(Text(_caption(results)))
    for name, reason in results.not_available.items():
        console.print(Text(f"{name}: {reason}"))


def markdown(results: Results) -> str:
    """Return the results as Markdown."""
    lines = [
        "# Detectors on the test split",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{'|'.join(['---'] + ['---:'] * (len(_COLUMNS) - 1))}|",
    ]
    lines += [f"| {' | '.join(_cells(*item))} |" for item in results.detectors.items()]
    lines += ["", _caption(results), ""]
    if results.not_available:
        lines += ["Without figures:", ""]
        lines += [f"- `{name}`: {reason}" for name, reason in results.not_available.items()]
        lines.append("")
    splits = results.dataset.get("splits", {})
    if splits:
        lines += ["| split | hallucinated | right | unlabelled |", "|---|---:|---:|---:|"]
        lines += [
            f"| {split} | {counts['n_pos']} | {counts['n_neg']} | {counts['n_unlabelled']} |"
            for split, counts in splits.items()
        ]
        lines.append("")
    return "\n".join(lines)


def write_markdown(results: Results, path: Path) -> None:
    """Write `markdown` to ``path``, atomically."""
    write_whole(path, markdown(results).encode())


def _cells(name: str, result: DetectorResult) -> tuple[str, ...]:
    low, high = result.auroc_interval
    return (
        name,
        f"{result.auroc:.3f} [{low:.3f}, {high:.3f}]",
        f"{result.auprc:.3f}",
        f"{result.f1:.3f}",
        f"{result.accuracy:.3f}",
        f"{result.fpr95:.3f}",
        "-" if result.ece is None else f"{result.ece:.3f}",
        _difference(result.difference_to_logprob_mean),
        f"{result.n_pos}/{result.n_neg}",
    )


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    low, high = difference.interval
    return f"{difference.difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def _caption(results: Results) -> str:
    confidence = results.config.get("confidence", 0.95)
    return (
        f"[low, high]: {100 * confidence:g} % bootstrap intervals, stratified; differences paired. "
        "Epoch, layer, sign and threshold are chosen on validation."
    )
