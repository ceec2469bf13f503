"""``index.json`` and the table, compared with each other, the folder and the shards' statistics."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from wdsbench.errors import ShardError
from wdsbench.records import SPLITS
from wdsbench.shards.check.arrays import LayerStats
from wdsbench.shards.check.problems import Problem, problem_of
from wdsbench.shards.format.index import INDEX_NAME, IndexFile, split_entries
from wdsbench.shards.format.kinds import main_member
from wdsbench.shards.format.names import make_key
from wdsbench.shards.format.table import is_table_name
from wdsbench.shards.read.index import COLUMNS, DatasetIndex
from wdsbench.shards.write.claim import MARKER_NAME

_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,40}-[0-9a-f]{16}")
_REDUCTION: Final = re.compile(r"reduction-([0-9a-f]{16})\.safetensors")

#: Stored states can exceed the largest state before packing by half of the last of 11 binary
#: digits, and by the smallest step of float16.
_ROUNDING: Final = 2.0**-11
_SMALLEST_STEP: Final = 2.0**-24


def shape_problems(index: DatasetIndex) -> Iterator[Problem]:
    """Yield the reasons why rows and members cannot be located with the index."""
    tensor = index.tensor
    entry = index.file.fields.get(tensor.name)
    if entry is None or len(entry.shape) != 3 or None in (entry.shape[0], entry.shape[2]):
        axes = ", ".join("null" if axis == "t" else str(axis) for axis in tensor.main_spec.axes)
        yield Problem("index", f"no field {tensor.name} of shape [{axes}]", INDEX_NAME)
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

    def problem(row: int, detail: str) -> Problem:
        url = file.shardlist[index.shard_of(row)].url
        text = f"row {row} of the table: {detail}"
        return Problem("table", text, url, index.key(row), None, index.question_id(row))

    questions = index.question_ids(np.arange(len(index)))
    traces = columns.get("trace", np.zeros(len(index), np.uint32)).tolist()
    keys = index.keys(np.arange(len(index)))
    for row, (key, question, trace) in enumerate(zip(keys, questions, traces, strict=True)):
        wanted = make_key(question, trace)
        if not _KEY.fullmatch(key) or key != wanted:
            yield problem(row, f"key {key!r}, question and trace give {wanted!r}")
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
        (index.member(index.tensor.main, "size") == 0, f"there is no {index.tensor.main}"),
    ):
        for row in np.flatnonzero(wrong).tolist():
            yield problem(row, what.format(**{name: columns[name][row] for name in COLUMNS}))
    if split_entries(columns) != file.splits:
        detail = "counts of splits and classes are not those of the table"
        yield Problem("index", detail, INDEX_NAME)
    for name, entry in file.fields.items():
        count = int((index.member(main_member(name), "size") != 0).sum())
        if count != entry.samples:
            detail = f"field {name} of {entry.samples} samples, the table has {count}"
            yield Problem("index", detail, INDEX_NAME)
    yield from sample_problems(index)


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


def sample_problems(index: DatasetIndex) -> Iterator[Problem]:
    """Yield the second and later samples of one key, and a question in two splits."""
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
    try:
        check_split_hygiene(index)
    except ShardError as error:
        yield problem_of(error, "split")


def check_split_hygiene(index: DatasetIndex) -> None:
    """Raise ShardError if traces of a question are in two splits, or a sample is in a shard of
    another split: data sets that ``wdsbench pack`` never writes.
    """
    shards = index.file.shardlist
    of_shard = np.array([SPLITS.index(entry.split) for entry in shards], np.uint8)
    place = np.repeat(of_shard, np.diff(index.first_rows))
    astray = np.flatnonzero(place != index.columns["split"])
    if astray.size:
        row = int(astray[0])
        shard, number = index.shard_of(row), int(index.columns["split"][row])
        name = SPLITS[number] if number < len(SPLITS) else f"number {number}"
        raise ShardError(
            f"question {index.question_id(row)!r} (row {row} of the table) is of split {name}, its"
            f" shard of {shards[shard].split}; pack again",
            shard=str(index.shard_path(shard)),
        )
    questions = {
        split: set(index.question_ids(np.flatnonzero(place == number)))
        for number, split in enumerate(SPLITS)
    }
    for first, second in combinations(SPLITS, 2):
        shared = questions[first] & questions[second]
        if shared:
            more = f" ({len(shared)} such questions)" if len(shared) > 1 else ""
            raise ShardError(
                f"question {min(shared)!r} is in split {first} and in {second}{more}; a"
                " question has one split: pack with --split-by question",
                shard=str(index.folder),
            )


def layer_problems(file: IndexFile, stats: LayerStats, *, complete: bool) -> Iterator[Problem]:
    """Yield layers whose statistics differ from the index; ``complete`` if they cover all."""
    for layer, entry in enumerate(file.layers[: len(stats.infinities)]):
        for name, found, expected in (
            ("infinities", int(stats.infinities[layer]), entry.infinities),
            ("scaled samples", int(stats.scaled[layer]), entry.scaled_samples),
        ):
            if found > expected or (complete and found < expected):
                detail = f"layer {layer}: {found} {name}, the index says {expected}"
                yield Problem("value", detail, INDEX_NAME)
        top = stats.max_abs[layer]
        if top > entry.max_abs * (1 + _ROUNDING) + _SMALLEST_STEP:
            detail = f"layer {layer} reaches {top:g}, the index says {entry.max_abs:g}"
            yield Problem("value", detail, INDEX_NAME)
    if file.layers and len(file.layers) != len(stats.infinities):
        detail = f"{len(file.layers)} entries of layers, the states have {len(stats.infinities)}"
        yield Problem("index", detail, INDEX_NAME)


def reduction_problems(index: DatasetIndex) -> Iterator[Problem]:
    """Yield a problem of the file of components that states were reduced with."""
    name = index.file.provenance.reduction
    if name is None:
        return
    match = _REDUCTION.fullmatch(name)
    try:
        data = (index.folder / name).read_bytes() if match else b""
    except OSError as error:
        yield Problem("missing", f"cannot be read: {error.strerror}", name)
        return
    if match is None or xxhash.xxh3_64_hexdigest(data) != match.group(1):
        yield Problem("hash", "XXH3 is not the one in its name", name)


def leftovers(folder: Path) -> Iterator[str]:
    """Yield notes about files of a killed or a running writer."""
    marker = folder / MARKER_NAME
    if marker.is_file():
        with marker.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                yield f"{MARKER_NAME}: a run was killed here; the next pack or relabel clears it"
            except OSError:
                yield f"{MARKER_NAME}: a run is writing here now; verify again when it has ended"
    for path in sorted(folder.glob(".*.tmp")):
        yield f"{path.name}: an unfinished file of a killed run; it can be removed"


def unknown_files(index: DatasetIndex) -> Iterator[str]:
    """Yield notes about shards and tables that the index does not name."""
    shards = {entry.url for entry in index.file.shardlist}
    for path in sorted(index.folder.iterdir()):
        if path.suffix == ".tar" and path.name not in shards:
            yield f"{path.name}: a shard that the index does not name; it is not read"
        elif is_table_name(path.name) and path.name != index.file.table.file:
            yield f"{path.name}: a table that the index does not name; it can be removed"
