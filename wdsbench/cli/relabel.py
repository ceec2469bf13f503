"""``wdsbench relabel``."""

from __future__ import annotations

from wdsbench.cli.terminal import print_json, say, say_notes, say_splits
from wdsbench.jobs.pack import RelabelJob, relabel

EXAMPLE = "wdsbench relabel shards/ --scores new.csv --score-column f1 --threshold 0.4"


def command(options: RelabelJob, as_json: bool) -> None:
    """Give a packed data set labels from other scores; its shards are not changed."""
    report = relabel(options)
    labels, splits = report.index.labels, report.index.splits
    assert labels is not None
    if as_json:
        print_json(
            {
                "shards": str(options.shards),
                "labels": labels.model_dump(),
                "samples": report.samples,
                "changed": report.changed,
                "unlabelled": report.unlabelled,
                "unused_scores": report.unused,
                "one_class": list(report.one_class),
                "splits": {name: entry.model_dump() for name, entry in splits.items()},
            }
        )
        return
    say(
        f"{report.changed} of {report.samples} labels changed, {report.unlabelled} unlabelled"
        f" ({labels.column} < {options.threshold:g} of {options.scores}) -> {options.shards}"
    )
    say_splits(splits)
    say_notes({"scores of the file belong to no sample": report.unused})
    for split in report.one_class:
        say(
            f"  warning: split {split} does not hold both classes, so detectors cannot be trained"
            " or scored on it; choose another --threshold"
        )
