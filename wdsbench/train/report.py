"""Results as tables on the terminal and as Markdown.

Both explain the intervals, list the detectors that cannot be distinguished, and give the reasons of
detectors without figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from wdsbench.train.metrics import HIGHEST, LOWEST
from wdsbench.train.quantiles import BOUND
from wdsbench.train.results import PERCENTILES, DetectorResult, Results
from wdsbench.train.sentences import (
    about_controls,
    listed,
    number,
    signed,
    verdict,
    with_interval,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Wider than any table, so that rich reports a table's full width.
_UNBOUNDED = 10_000

# Columns by heading: the cell of a detector.
_Columns = dict[str, Callable[[str, DetectorResult], str]]


def _percentile(percent: int, _: str, result: DetectorResult) -> str:
    return "-" if result.errors is None else f"{result.errors.quantiles[str(percent)]:.3g}"


_NAME: _Columns = {"detector": lambda name, _: name}
_AREA: _Columns = {"AUROC": lambda _, r: with_interval(r.auroc, r.auroc_interval)}
_SEEDS: _Columns = {"over seeds": lambda _, r: _over_seeds(r)}
_SEEDS_BRIEF: _Columns = {"over seeds": lambda _, r: _over_seeds(r).partition(" ")[0]}
_PRECISION: _Columns = {"AUPRC": lambda _, r: with_interval(r.auprc, r.auprc_interval)}
_COUNTS: _Columns = {"n_pos/n_neg": lambda _, r: f"{r.n_pos}/{r.n_neg}"}
_DECISIONS: _Columns = {
    "F1": lambda _, r: number(r.f1),
    "accuracy": lambda _, r: number(r.accuracy),
    "FPR@95": lambda _, r: number(r.fpr95),
}
_CALIBRATION: _Columns = {
    "ECE": lambda _, r: number(r.ece),
    "ECE / T": lambda _, r: number(r.ece_scaled),
    "Brier": lambda _, r: number(r.brier),
    "Brier / T": lambda _, r: number(r.brier_scaled),
}
_DIFFERENCES: _Columns = {
    "vs best": lambda _, r: signed(r.difference_to_best),
    "vs logprob_mean": lambda _, r: signed(r.difference_to_logprob_mean),
}
_ADDED: _Columns = {
    "vs control": lambda _, r: signed(r.difference_to_control),
    "adds to text": lambda _, r: signed(r.adds_to_text),
}
_VERDICT: _Columns = {"verdict": lambda _, r: r.verdict or "-"}
_GROUPS: _Columns = {
    "mean of groups": lambda _, r: number(None if r.groups is None else r.groups.mean),
}
_ERRORS: _Columns = {
    "error": lambda _, r: _error(r),
    "threshold": lambda _, r: f"{r.threshold:.4g}",
    "above": lambda _, r: "-" if r.errors is None else f"{100 * r.errors.above_threshold:.1f} %",
}
_PERCENTILES: _Columns = {
    **{f"{percent} %": partial(_percentile, percent) for percent in PERCENTILES},
    "mean of validation": lambda _, r: (
        "-" if r.errors is None else f"{r.errors.validation_mean:.3g}"
    ),
}
_COST: _Columns = {
    "parameters": lambda _, r: f"{r.parameters:,}",
    "epochs": lambda _, r: "-" if r.epochs is None else f"{r.epochs:.4g}",
    "best epoch": lambda _, r: "-" if r.best_epoch is None else f"{r.best_epoch + 1:.4g}",
    "seconds per epoch": lambda _, r: _seconds(r.seconds_per_epoch),
}
_CHOICES: _Columns = {
    "AUROC on validation": lambda _, r: number(r.val_auroc),
    "threshold": lambda _, r: f"{r.threshold:.4g}",
    "sign": lambda _, r: "-" if r.sign is None else f"{r.sign:+d}",
    "T": lambda _, r: "-" if r.temperature is None else f"{r.temperature:.3f}",
    "chosen": lambda _, r: ", ".join(f"{k} {v}" for k, v in r.chosen.items()) or "-",
}


def results_table(results: Results, columns: _Columns) -> Table:
    """Return the detectors' figures as a table, the highest AUROC in bold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        # A figure that does not fit is folded, never cut.
        justify: Literal["left", "right"] = "left" if column == "detector" else "right"
        table.add_column(column, justify=justify, overflow="fold")
    areas = [result.auroc for result in results.detectors.values()]
    top = max((area for area in areas if area is not None), default=math.nan)
    for name, result in results.detectors.items():
        style = "bold" if result.auroc == top else ""
        table.add_row(*(Text(cell(name, result)) for cell in columns.values()), style=style)
    return table


def print_results(results: Results, console: Console) -> None:
    """Print figures (several tables on a narrow console), conclusions and missing detectors."""
    from rich.text import Text

    seeds = _SEEDS_BRIEF if _trainings(results) else {}
    calibration = {name: _CALIBRATION[name] for name in ("ECE", "ECE / T")}
    narrow: list[_Columns] = [
        {**_NAME, **_AREA, **seeds, **_PRECISION},
        {**_NAME, **_DIFFERENCES},
        {**_NAME, **_DECISIONS, **calibration, **_COUNTS},
    ]
    wide = _NAME | _AREA | seeds | _PRECISION | _DECISIONS | calibration | _DIFFERENCES | _COUNTS
    if results.images:
        narrow = [_NAME | columns for columns in _image_columns(results, seeds)]
        wide = {heading: cell for columns in narrow for heading, cell in columns.items()}
    console.print("Detectors on the test split", style="bold")
    _print_tables(results, console, wide, narrow)
    if controls := _control_columns(results):
        console.print("Controls", style="bold")
        rest = {heading: controls[heading] for heading in controls if heading not in _ADDED}
        _print_tables(results, console, _NAME | controls, [_NAME | _ADDED, _NAME | rest])
    sentences = (*verdict(results), *about_controls(results), *_about_groups(results))
    for line in (*sentences, *_about_seeds(results), *_about_figures(results)):
        console.print(Text(line))
    for name, reason in results.not_available.items():
        console.print(Text(f"{name}: {reason}"))


def _print_tables(
    results: Results, console: Console, wide: _Columns, narrow: list[_Columns]
) -> None:
    """Print the columns ``wide`` as one table if there is room, else as several."""
    from rich.measure import Measurement

    table = results_table(results, wide)
    unbounded = console.options.update(max_width=_UNBOUNDED)
    if Measurement.get(console, unbounded, table).maximum <= console.width:
        console.print(table)
        return
    for columns in narrow:
        console.print(results_table(results, columns))


def markdown(results: Results) -> str:
    """Return the results as Markdown, with every figure of ``results.json``."""
    lines = ["# Detectors on the test split", ""]
    if results.detectors:
        seeds = _SEEDS if _trainings(results) else {}
        first = _AREA | seeds | _PRECISION | _DECISIONS | _CALIBRATION | _COUNTS
        for columns in _image_columns(results, seeds) if results.images else [first]:
            lines += _markdown_table(results, _NAME | columns)
        lines += [*_paragraphs(_about_figures(results)), *_paragraphs(_about_seeds(results))]
        if any(result.difference_to_best for result in results.detectors.values()):
            lines += ["## Comparison with the best on validation", ""]
            lines += _markdown_table(results, {**_NAME, **_DIFFERENCES})
            lines += _paragraphs(verdict(results))
        if controls := _control_columns(results):
            lines += ["## Controls", ""]
            lines += _markdown_table(results, _NAME | controls)
        lines += [*_paragraphs(about_controls(results)), *_paragraphs(_about_groups(results))]
        lines += _group_table(results)
        if results.images:
            lines += ["## Percentiles of test errors", ""]
            lines += _markdown_table(results, _NAME | _PERCENTILES)
        lines += ["## Cost and choices made on validation", ""]
        lines += _markdown_table(results, {**_NAME, **_COST, **_CHOICES})
        lines += _paragraphs(_about_choices(results))
    if results.not_available:
        lines += ["## Detectors without figures", ""]
        lines += [f"- `{name}`: {reason}" for name, reason in results.not_available.items()]
        lines.append("")
    splits = results.dataset.get("splits", {})
    if splits:
        lines += ["## Samples", ""]
        classes = "anomalous | normal" if results.images else "hallucinated | right"
        lines += [f"| split | {classes} | unlabelled |", "|---|---:|---:|---:|"]
        lines += [
            f"| {split} | {counts['n_pos']} | {counts['n_neg']} | {counts['n_unlabelled']} |"
            for split, counts in splits.items()
        ]
        note = "Unlabelled samples are scored but not included in the figures."
        if results.images:
            note = (
                "Anomalous samples (label 1) are left out of fitting and of the threshold;"
                " unlabelled ones are scored but not included in the figures that need labels."
            )
        lines += ["", note, ""]
    return "\n".join(lines)


def _control_columns(results: Results) -> _Columns:
    """Return the columns of controls and groups; empty if there are neither."""
    found = results.detectors.values()
    compared = any(r.adds_to_text or r.difference_to_control for r in found)
    groups = _GROUPS if any(r.groups for r in found) else {}
    return (_ADDED | _VERDICT if compared else {}) | groups


def _group_table(results: Results) -> list[str]:
    """Return the AUROC of each group, a line per group, as Markdown."""
    found = {name: r.groups.auroc for name, r in results.detectors.items() if r.groups}
    groups = list(next(iter(found.values()), ()))
    if not groups:
        return []
    lines = [_row(["group", *found]), f"|---|{'---:|' * len(found)}"]
    lines += [
        _row([group, *(number(areas[group]) for areas in found.values())]) for group in groups
    ]
    return [*lines, ""]


def _image_columns(results: Results, seeds: _Columns) -> list[_Columns]:
    """Return the columns of detectors on images: of errors, and of labels if there are any."""
    if all(result.auroc is None for result in results.detectors.values()):
        return [_ERRORS]
    vs_best = {"vs best": _DIFFERENCES["vs best"]}
    return [_ERRORS, _AREA | seeds | _PRECISION | vs_best, _DECISIONS | _COUNTS]


def _about_figures(results: Results) -> list[str]:
    if results.images:
        return _about_errors(results)
    lines = [
        f"[low, high]: {100 * results.confidence:g} % bootstrap intervals over test samples, "
        "stratified by class; differences in AUROC are paired. Epoch, layer, sign, threshold and "
        "temperature are chosen on validation."
    ]
    if any(result.temperature is not None for result in results.detectors.values()):
        lines.append("ECE: expected calibration error; '/ T': after division of the logits by T.")
    return lines


def _about_errors(results: Results) -> list[str]:
    found = results.detectors.values()
    percentile = results.config.get("percentile")
    lines = [
        "error: reconstruction error of the test samples, median [5 %, 95 %]. Threshold: percentile"
        f" {percentile:g} of the errors of the validation samples without label 1; above: share of"
        " the test samples above it."
    ]
    if any(result.errors is not None and not result.errors.exact for result in found):
        lines.append(f"The threshold is that percentile within {100 * BOUND:.2g} %.")
    if any(result.auroc is not None for result in found):
        lines.append(
            f"[low, high] after AUROC and AUPRC: {100 * results.confidence:g} % bootstrap intervals"
            " over labelled test samples, stratified by class."
        )
    else:
        lines.append("The labelled test samples do not have both classes: no AUROC.")
    return lines


def _about_seeds(results: Results) -> list[str]:
    trainings = _trainings(results)
    if not trainings:
        return []
    still = [
        name
        for name, result in results.detectors.items()
        if result.seeds is not None and not result.seeds.varies
    ]
    lines = [
        f"All figures are means over {trainings} trainings that differ only in their seed. 'over "
        "seeds' is the standard deviation of AUROC over them (minimum to maximum): the variation "
        "between trainings on the same test samples. The intervals are those of the mean: the "
        "variation between test samples. Neither includes the other."
    ]
    if still and trainings > 1:
        lines.append(f"No spread, because they do not depend on the seed: {listed(still)}.")
    return lines


def _about_groups(results: Results) -> list[str]:
    groups = next((r.groups for r in results.detectors.values() if r.groups), None)
    if groups is None:
        return []
    text = f"mean of groups: AUROC within each of {len(groups.auroc)} groups of questions, averaged"
    if groups.one_class:
        text += f"; {groups.one_class} groups whose test samples lack a class are left out"
    return [f"{text}. Base rates of groups do not influence it."]


def _about_choices(results: Results) -> list[str]:
    lines = []
    if any(result.best_epoch is not None for result in results.detectors.values()):
        lines.append("Epochs are counted from 1; the weights of the best one were kept.")
    limits = [
        name
        for name, result in results.detectors.items()
        if result.temperature is not None and not LOWEST < result.temperature < HIGHEST
    ]
    if limits:
        lines.append(
            f"T at its limit ({LOWEST:g} or {HIGHEST:g}) is not a fit: on validation the classes "
            f"are perfectly separated, or the logits are uninformative: {listed(limits)}."
        )
    return lines


def _markdown_table(results: Results, columns: _Columns) -> list[str]:
    lines = [_row(list(columns)), f"|{'|'.join(['---'] + ['---:'] * (len(columns) - 1))}|"]
    lines += [
        _row([cell(name, result) for cell in columns.values()])
        for name, result in results.detectors.items()
    ]
    return [*lines, ""]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _paragraphs(lines: list[str]) -> list[str]:
    return [" ".join(lines), ""] if lines else []


def _trainings(results: Results) -> int:
    """Return the number of trainings of the means; 0 for a single run."""
    return max((result.seeds.n for result in results.detectors.values() if result.seeds), default=0)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def _error(result: DetectorResult) -> str:
    if result.errors is None:
        return "-"
    low, middle, high = (result.errors.quantiles[percent] for percent in ("5", "50", "95"))
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


def _over_seeds(result: DetectorResult) -> str:
    if result.seeds is None or "auroc" not in result.seeds.figures:
        return "-"
    spread = result.seeds.figures["auroc"]
    return f"±{spread.std:.3f} ({spread.min:.3f} to {spread.max:.3f})"
