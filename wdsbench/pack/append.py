"""Appends to a data set: checks that the options match, and joins the provenance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.errors import PackError
from wdsbench.pack.options import PackOptions
from wdsbench.pack.reduce import load_reduction, parse_reduce
from wdsbench.pack.samples import SampleBuilder
from wdsbench.pack.tally import LayerTotals, Tally
from wdsbench.records import SPLITS
from wdsbench.shards.format.index import Appended, LabelsEntry, Provenance
from wdsbench.shards.format.kinds import HIDDEN, KINDS, attention_kinds
from wdsbench.shards.read.index import DatasetIndex


def check_same_options(base: DatasetIndex, options: PackOptions, labels: LabelsEntry) -> None:
    """Raise PackError, with both values, if the data set was packed with other options."""
    packed = base.file.provenance
    now = base.labels or LabelsEntry(source="traces")
    asked: list[tuple[str, Any, Any]] = [
        ("--split-by", packed.split_by, options.split_by),
        ("--attention", packed.attention, list(options.attention)),
        ("--edge-rule", packed.edge_rule, options.edge_rule),
        ("--head-threshold", packed.head_threshold, options.head_threshold),
        ("labels from", now.source, labels.source),
        (
            "--missing-score",
            packed.missing_score,
            options.missing(scored=labels.source == "scores"),
        ),
    ]
    if labels.source == "scores":
        asked += [
            ("--score-column", now.column, labels.column),
            ("--threshold", now.threshold, labels.threshold),
        ]
    for name, before, given in asked:
        if before != given:
            raise PackError(
                f"{base.folder} was packed with {name} {_shown(before)}, this run has"
                f" {_shown(given)}; append with the same options, or pack all files again"
            )
    if options.split_by == "file":
        raise PackError(
            f"{base.folder} was packed with --split-by file: splits depend on all files, so more"
            " files would change the splits of existing samples; pack all files again"
        )


def load_base(samples: SampleBuilder, base: DatasetIndex) -> None:
    """Add the data set that is appended to; PackError if its reduction differs or is missing."""
    columns, file = base.columns, base.file
    samples.reduction = _reduction(samples.options, base)
    features = base.num_features if samples.reduction is None else samples.reduction.mean.shape[1]
    samples.shape, samples.layers = (base.num_layers, features), base.model_layers
    samples.heads = base.heads
    stored = [kind.name for kind in attention_kinds() if kind.name in file.fields]
    kept = np.zeros(len(base), bool)
    for name in stored:
        kept |= base.member(KINDS[name].main, "size") != 0
    samples.closed = Tally(
        layers=LayerTotals.from_entries(file.layers),
        samples=len(base),
        unlabelled=int(np.isnan(columns["label"]).sum()),
        attention=Counter({name: file.fields[name].samples for name in stored}),
        with_attention=int(kept.sum()),
        graphs=_graphs(file.fields["edges"].note) if "edges" in file.fields else 0,
        remarks=Counter(file.provenance.remarks or {}),
    )
    rows = np.arange(len(base))
    keys, questions = base.keys(rows), base.question_ids(rows)
    places = zip(
        keys,
        questions,
        columns["trace"].tolist(),
        columns["split"].tolist(),
        base.member(HIDDEN, "xxh3").tolist(),
        strict=True,
    )
    for key, question, trace, split, digest in places:
        # Numbers may have gaps; traces without a number follow the largest.
        samples.traces_of[question] = max(samples.traces_of[question], trace + 1)
        samples.seen[question, trace] = f"sample {key} of the data set"
        samples.stored[question, digest] = key
        samples.split_of[question] = SPLITS[split]
    samples.labeller.existing = frozenset(samples.traces_of)


def joined_labels(before: LabelsEntry | None, labels: LabelsEntry) -> LabelsEntry:
    """Return the source of the labels of both."""
    if before is None or before == labels or labels.source == "traces":
        return labels
    names = [name for name in (before.file, labels.file) if name is not None]
    # Two files have no single hash.
    return labels.model_copy(update={"file": ", ".join(names), "xxh3": None})


def joined_provenance(before: Provenance, run: Provenance) -> Provenance:
    """Return the provenance of a data set after files were appended."""
    appended = Appended(inputs=len(run.inputs), scores=run.scores)
    update: dict[str, Any] = {
        "inputs": [*before.inputs, *run.inputs],
        "dropped": before.dropped + run.dropped,
        "remarks": run.remarks,
        "appended": [*before.appended, appended],
    }
    if before.numbered is not None:
        update["numbered"] = before.numbered + (run.numbered or 0)
    return before.model_copy(update=update)


def _graphs(note: str) -> int:
    """Return the count of samples from graphs that the note of the edges contains."""
    count = note.removeprefix("graphs of the input (").partition(" ")[0]
    return int(count) if count.isdecimal() else 0


def _reduction(options: PackOptions, base: DatasetIndex) -> Any:
    name = base.file.provenance.reduction
    asked = parse_reduce(options.reduce)
    if name is None and asked is None:
        return None
    there = None if name is None else base.num_features
    if there != asked:
        raise PackError(
            f"{base.folder} was packed with --reduce {_shown(there and f'pca:{there}')}, this run"
            f" has {_shown(options.reduce)}; append with the same option"
        )
    return load_reduction(base.folder / Path(str(name)).name)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
