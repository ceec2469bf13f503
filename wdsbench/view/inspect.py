"""Inspect a packed data set: fields, sizes, ranges, lengths and classes, as JSON values.

Nearly everything comes from the index. Ranges are measured on a few random samples, so inspecting a
terabyte takes seconds.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from wdsbench.records import SPLITS
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample
from wdsbench.view.inspect_images import patch_facts
from wdsbench.view.shapes import Ranges, numbered_layers, spread, token_rows

#: Samples of a data set whose states are read for the ranges.
RANGE_SAMPLES: Final = 16


def inspect_dataset(
    index: DatasetIndex, source: str, *, range_samples: int = RANGE_SAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Return fields, sizes, ranges, lengths and classes of a data set; ShardError if it is damaged.

    Ranges are measured on ``range_samples`` random samples, which ``seed`` chooses.
    """
    columns, file = index.columns, index.file
    prompt = columns["prompt_length"].astype(np.int64)
    rows = np.sort(np.random.default_rng(seed).permutation(len(index))[:range_samples])
    facts = _dataset_facts(index, source)
    if index.tensor.name == "image":
        found = {"range_samples": len(rows), **patch_facts(index, rows)}
        return {**facts, "kind": "image dataset", **found}
    ranges = Ranges()
    for row in rows.tolist():
        ranges.add(np.asarray(StoredSample(index, row).states(), np.float32))
    layers = ranges.as_json()
    for number, entry in enumerate(file.layers):
        if number == len(layers):
            layers.append({"layer": number})
        layers[number].update(entry.model_dump())
    return {
        **facts,
        "kind": "dataset",
        "layers": numbered_layers(layers, index.model_layers),
        "range_samples": len(rows),
        "tokens": spread(columns["tokens"]),
        "state_tokens": spread(columns["state_tokens"]),
        "prompt_tokens": spread(prompt[prompt >= 0]),
        "answer_tokens": spread((columns["tokens"] - prompt)[prompt >= 0]),
        "unknown_prompts": int((prompt < 0).sum()),
    }


def _dataset_facts(index: DatasetIndex, source: str) -> dict[str, Any]:
    """Return what the index says about traces and images alike."""
    file = index.file
    return {
        "source": source,
        "samples": len(index),
        "questions": len(set(index.question_ids(np.arange(len(index))))),
        "bytes": sum(entry.filesize for entry in file.shardlist),
        "shards": [
            {
                "name": Path(entry.url).name,
                "split": entry.split,
                "samples": entry.nsamples,
                "bytes": entry.filesize,
            }
            for entry in file.shardlist
        ],
        "splits": {name: entry.model_dump() for name, entry in file.splits.items()},
        "fields": {name: entry.model_dump() for name, entry in file.fields.items()},
        "members": _member_totals(index),
        "labels": None if file.labels is None else file.labels.model_dump(),
        "provenance": file.provenance.model_dump(mode="json"),
    }


def inspect_sample(index: DatasetIndex, wanted: str) -> dict[str, Any]:
    """Return labels, tokens and members of the sample with this member key, or of the first trace
    of the question with this id; ValueError if there is none.
    """
    row = _row_of(index, wanted)
    sample, table = StoredSample(index, row), index.sample_row(row)
    meta, prompt = sample.meta(), table.prompt_length
    return {
        "kind": "sample",
        "key": table.key,
        "question_id": table.question_id,
        "trace": table.trace,
        "split": SPLITS[int(index.columns["split"][row])],
        "shard": index.shard_path(int(index.columns["shard"][row])).name,
        "label": _known(table.label),
        "score": _known(table.score),
        "tokens": table.tokens,
        "prompt_length": None if prompt < 0 else prompt,
        "answer": meta.get("answer", ""),
        "token_list": token_rows(
            meta.get("tokens") or (),
            meta.get("token_texts") or (),
            None if prompt < 0 else prompt,
            meta.get("token_logprobs"),
        ),
        "members": [_member(sample, name) for name in member_names() if sample.has_member(name)],
        "image": meta.get("image"),
        "provenance": meta.get("provenance"),
    }


def _member_totals(index: DatasetIndex) -> dict[str, dict[str, int]]:
    totals = {}
    for name in member_names():
        sizes = index.member(name, "size")
        if sizes.any():
            totals[name] = {"samples": int((sizes != 0).sum()), "bytes": int(sizes.sum())}
    return totals


def _member(sample: StoredSample, name: str) -> dict[str, Any]:
    """Return where a member is stored, and dtype and shape of an array."""
    member = sample.index.place(sample.row, name)
    place = {"name": name, "bytes": member.size_bytes, "offset_bytes": member.offset_bytes}
    if not name.endswith(".npy"):
        return {**place, "dtype": None, "shape": None}
    array = sample.member_array(name)
    return {**place, "dtype": array.dtype.str, "shape": list(array.shape)}


def _row_of(index: DatasetIndex, wanted: str) -> int:
    keys = np.flatnonzero(index.columns["key"] == wanted.encode("utf-8", "surrogateescape"))
    if keys.size:
        return int(keys[0])
    ids = index.question_ids(np.arange(len(index)))
    if wanted in ids:
        return ids.index(wanted)
    raise ValueError(
        f"--sample {wanted}: neither a member key nor a question id of this data set, as are"
        f" {index.key(0)} and {ids[0]}"
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
