"""The table compared with ``index.json`` and with itself, without reading shards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from wdsbench.errors import ShardError
from wdsbench.records import SPLITS
from wdsbench.shards.check.hygiene import check_split_hygiene
from wdsbench.shards.check.problems import Problem, problem_of
from wdsbench.shards.format.index import INDEX_NAME, split_entries
from wdsbench.shards.format.kinds import HIDDEN, main_member
from wdsbench.shards.format.names import make_key
from wdsbench.shards.read.index import DatasetIndex

#: Columns whose values problems show.
_SHOWN: Final = ("shard", "split", "tokens", "state_tokens", "prompt_length", "label", "score")
_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,40}-[0-9a-f]{16}")


def shape_problems(index: DatasetIndex) -> Iterator[Problem]:
    """Yield the reasons why rows and members cannot be located with the index."""
    hidden = index.file.fields.get("hidden")
    if hidden is None or len(hidden.shape) != 3 or None in (hidden.shape[0], hidden.shape[2]):
        yield Problem("index", "no field hidden of shape [L, null, D]", INDEX_NAME)
    else:
        try:
            _ = index.model_layers
        except ShardError as error:
            yield Problem("index", error.detail, INDEX_NAME)
    urls = [entry.url for entry in index.file.shardlist]
    for url in sorted(set(urls)):
        if Path(url).name != url or url in ("", ".", ".."):
            yield Problem("index", f"shard {url!r} is not in the data set's folder", INDEX_NAME)
        elif urls.count(url) > 1:
            yield Problem("index", f"shard {url!r} is listed twice", INDEX_NAME)
    table = index.file.table.file
    for name, column in index.columns.items():
        per_sample = name not in ("question_offset", "question_bytes")
        if per_sample and column.shape != (len(index),):
            detail = f"column {name} of shape {column.shape}, expected ({len(index)},)"
            yield Problem("table", detail, table)
    try:
        index.question_ids(np.arange(len(index)))
    except (UnicodeDecodeError, IndexError, ValueError) as error:
        yield Problem("table", f"question ids cannot be read: {error}", table)


def table_problems(index: DatasetIndex) -> Iterator[Problem]:
    """Yield where the table disagrees with ``index.json`` or with itself."""
    columns, file = index.columns, index.file

    def problem(row: int, kind: str, detail: str) -> Problem:
        url = file.shardlist[index.shard_of(row)].url
        text = f"row {row} of the table: {detail}"
        return Problem(kind, text, url, index.key(row), None, index.question_id(row))

    questions = index.question_ids(np.arange(len(index)))
    traces = columns.get("trace", np.zeros(len(index), np.uint32)).tolist()
    keys = index.keys(np.arange(len(index)))
    for row, (key, question, trace) in enumerate(zip(keys, questions, traces, strict=True)):
        if not _KEY.fullmatch(key) or key != make_key(question, trace):
            wanted = make_key(question, trace)
            yield problem(row, "table", f"key {key!r}, question and trace give {wanted!r}")
    shard_column = np.repeat(np.arange(len(file.shardlist)), np.diff(index.first_rows))
    tokens, states, prompt = (
        columns[name].astype(np.int64) for name in ("tokens", "state_tokens", "prompt_length")
    )
    label, score = columns["label"], columns["score"]
    for wrong, what in (
        (columns["shard"] != shard_column, "shard {shard} is not the one that holds it"),
        (columns["split"] >= len(SPLITS), "split {split} is not one of 0, 1, 2"),
        (tokens < 1, "{tokens} tokens"),
        (
            (states != tokens) & (states != 1) & ~index.of_answer,
            "states of {state_tokens} tokens of {tokens} (prompt {prompt_length})",
        ),
        (
            (prompt != -1) & ((prompt < 1) | (prompt >= tokens)),
            "prompt of {prompt_length} tokens of {tokens}",
        ),
        (~(np.isnan(label) | (label == 0) | (label == 1)), "label {label} is not 0, 1 or unknown"),
        (np.isinf(score), "score {score} is not finite"),
        (_mislabelled(index), "label {label} of score {score} contradicts the threshold"),
        (index.member(HIDDEN, "size") == 0, "there is no hidden.npy"),
    ):
        for row in np.flatnonzero(wrong).tolist():
            values = {name: columns[name][row] for name in _SHOWN}
            yield problem(row, "table", what.format(**values))
    if split_entries(columns) != file.splits:
        detail = "counts of splits and classes are not those of the table"
        yield Problem("index", detail, INDEX_NAME)
    for name, entry in file.fields.items():
        sizes = index.member(main_member(name), "size")
        count = int((sizes != 0).sum())
        if count != entry.samples:
            detail = f"field {name} of {entry.samples} samples, the table has {count}"
            yield Problem("index", detail, INDEX_NAME)
    yield from duplicates(index)
    try:
        check_split_hygiene(index)
    except ShardError as error:
        yield problem_of(error, "split")


def _mislabelled(index: DatasetIndex) -> Any:
    """Return bool ``[n]``: labels that contradict score and threshold."""
    label, score = index.columns["label"], index.columns["score"]
    labels = index.labels
    if labels is None or labels.source != "scores" or labels.threshold is None:
        return np.zeros(len(index), bool)
    threshold = np.float32(labels.threshold)
    # A score next to the threshold can have been rounded across it.
    decided = ~np.isnan(score) & (score != threshold)
    return decided & (label != (score < threshold))


def duplicates(index: DatasetIndex) -> Iterator[Problem]:
    """Yield the second and later samples of one key."""
    keys = index.columns["key"]
    _, first = np.unique(keys, return_index=True)  # the first row of each key
    for row in np.setdiff1d(np.arange(len(keys)), first).tolist():
        yield Problem(
            "table",
            "the key is in the data set twice; question and trace have one sample",
            index.shard_path(index.shard_of(row)).name,
            index.key(row),
            question_id=index.question_id(row),
        )
