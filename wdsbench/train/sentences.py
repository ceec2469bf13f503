"""The sentences of the report about which detectors differ, and how its figures are written."""

from __future__ import annotations

from collections.abc import Sequence

from wdsbench.detect.registry import CONTROLS, TEXT_CONTROL
from wdsbench.train.results import DetectorResult, Difference, Results


def verdict(results: Results) -> list[str]:
    """Return sentences on which detectors differ from the best one on validation; empty if there is
    no comparison.
    """
    best = results.best
    differences = {
        name: result.difference_to_best
        for name, result in results.detectors.items()
        if result.difference_to_best is not None
    }
    if best is None or not differences:
        return []
    groups: dict[str, list[str]] = {"same": [], "worse": [], "better": []}
    for name, difference in differences.items():
        low, high = difference.interval
        groups["worse" if high < 0 else "better" if low > 0 else "same"].append(name)
    confidence = f"{100 * results.confidence:g} %"
    figures = results.detectors[best]
    lines = [
        f"Best on validation: {best} (AUROC {number(figures.val_auroc)} there, "
        f"{number(figures.auroc)} on test).",
        f"Not significantly different from {best} at {confidence} confidence (the interval of the "
        f"difference contains 0): {listed(groups['same'])}.",
        f"Worse than {best}: {listed(groups['worse'])}.",
    ]
    if groups["better"]:
        lines.append(
            f"Better than {best} on test, but not on validation: {listed(groups['better'])}."
        )
    if len(differences) > 1:
        lines.append(
            f"The {len(differences)} intervals are not corrected for multiple comparisons."
        )
    return lines


def about_controls(results: Results) -> list[str]:
    """Return sentences on what detectors add to the text of the answers; empty without controls."""
    text = results.detectors.get(TEXT_CONTROL)
    if text is None:
        if TEXT_CONTROL not in results.not_available:
            return []
        return [
            f"{TEXT_CONTROL} could not be run: whether a detector knows more than the words of the"
            " answers is not known."
        ]
    if text.auroc_interval is None or results.best is None:
        return []
    lines = [_about_verdict(results, text)]
    judged = {name: found for name, found in results.detectors.items() if found.verdict}
    if len(judged) > 1:
        adding = [name for name, found in judged.items() if found.verdict == "adds"]
        others = [name for name in judged if name not in adding]
        lines.append(
            f"Adding to the words: {listed(adding)}. Not: {listed(others)}. The verdict on the data"
            " set is that of the best detector on validation."
        )
    return [
        *lines,
        "vs control: AUROC minus that of the best control on validation. adds to text: AUROC of"
        f" {TEXT_CONTROL} and the detector combined (logistic regression on validation) minus that"
        f" of {TEXT_CONTROL} alone.",
    ]


def _about_verdict(results: Results, text: DetectorResult) -> str:
    best, area = results.best, with_interval(text.auroc, text.auroc_interval)
    assert best is not None
    adds = results.detectors[best].adds_to_text
    by = f"{best} adds nothing measurable to it ({signed(adds)})"
    if best in CONTROLS:
        by = "no detector was run beside the controls"
    if results.verdict == "adds":
        return (
            f"Verdict: adds. {best} knows more than the words of the answers: it raises the AUROC"
            f" of {TEXT_CONTROL}, {area}, by {signed(adds)}."
        )
    if results.verdict == "leak":
        return (
            f"Verdict: leak. The words of the answers give the labels away: {TEXT_CONTROL}, which"
            f" sees nothing else, has an AUROC of {area}, and {by}. These data do not show that the"
            " model's states know more than the words."
        )
    return (
        f"Verdict: none. The words of the answers do not give the labels away ({TEXT_CONTROL} has"
        f" an AUROC of {area}), and {by}."
    )


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    return number(value) + ("" if interval is None else " [{:.3f}, {:.3f}]".format(*interval))


def signed(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    low, high = difference.interval
    return f"{difference.difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
