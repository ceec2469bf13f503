"""``wdsbench relabel``: other labels for shards that stay as they are."""

from __future__ import annotations

from pathlib import Path

import typer

from wdsbench.cli.terminal import print_json, stdout

EXAMPLE = "wdsbench relabel shards/ --scores new.csv --score-column f1 --threshold 0.4"


def command(
    shards: Path = typer.Argument(..., help="Folder of the data set."),
    scores: Path = typer.Option(
        ...,
        help="CSV with question_id, a score and, where answers to a question differ, trace: the"
        " number in the data set.",
    ),
    score_column: str | None = typer.Option(
        None, help="Column of the score [bleurt_score, or the only one beside abstained]."
    ),
    threshold: float = typer.Option(0.5, help="A score below it means hallucinated (label 1)."),
    missing_score: str = typer.Option("error", help="Sample without a score: error or keep."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one line of JSON."),
) -> None:
    """Give a packed data set labels from other scores; no shard is touched."""
    from wdsbench.pack.relabel import relabel

    report = relabel(
        shards,
        scores,
        score_column=score_column,
        threshold=threshold,
        missing_score=missing_score,
    )
    assert report.index.labels is not None
    if as_json:
        print_json(
            {
                "shards": str(shards),
                "labels": report.index.labels.model_dump(),
                "samples": report.samples,
                "changed": report.changed,
                "unlabelled": report.unlabelled,
                "unused_scores": report.unused,
                "one_class": list(report.one_class),
                "splits": {name: entry.model_dump() for name, entry in report.index.splits.items()},
            }
        )
        return
    lines = [
        f"{report.changed} of {report.samples} labels changed, {report.unlabelled} unlabelled"
        f" ({report.index.labels.column} < {threshold:g} of {scores}) -> {shards}"
    ]
    for name, entry in report.index.splits.items():
        note = "" if entry.samples else " (empty)"
        lines.append(
            f"  {name:5} {entry.samples:7} samples: {entry.hallucinated} hallucinated,"
            f" {entry.right} right, {entry.unlabelled} unlabelled{note}"
        )
    if report.unused:
        lines.append(f"  note: {report.unused} scores of the file belong to no sample")
    for split in report.one_class:
        lines.append(
            f"  warning: split {split} does not hold both classes; detectors cannot be trained or"
            " scored on it: choose another --threshold"
        )
    for line in lines:
        stdout.print(line, highlight=False, soft_wrap=True, markup=False)
