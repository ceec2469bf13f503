"""What data is made of: keys, shapes, dtypes, sizes, ranges, lengths and classes, as plain values.

Raw files are read by the safe readers, one in memory at a time; bad traces are counted and
described like good ones. Of a data set the index says nearly all, and ranges come from a few random
samples, so that a terabyte is inspected in seconds. Everything returned can be written as JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from wdsbench.errors import TraceError
from wdsbench.progress import Progress, no_progress
from wdsbench.records import SPLITS, Trace
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample
from wdsbench.traces.check import check_trace
from wdsbench.traces.files import expand_patterns, kind_of
from wdsbench.traces.read import raw_objects
from wdsbench.traces.tensors import sequence_traces
from wdsbench.view.shapes import KeyShape, Ranges, described, spread

#: Samples of a data set whose states are read for the ranges.
RANGE_SAMPLES: Final = 16


def inspect_dataset(
    index: DatasetIndex, source: str, *, range_samples: int = RANGE_SAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Return what a data set is made of.

    Args:
        index: Of the data set.
        source: What the user calls it.
        range_samples: Random samples whose states are read for the ranges; 0: none.
        seed: Of the choice.

    Raises:
        ShardError: A sample cannot be read.
    """
    columns, file = index.columns, index.file
    prompt = columns["prompt_length"].astype(np.int64)
    rows = np.random.default_rng(seed).permutation(len(index))[:range_samples]
    ranges = Ranges()
    for row in np.sort(rows).tolist():
        ranges.add(np.asarray(StoredSample(index, row).states(), np.float32))
    layers = ranges.as_json()
    for number, entry in enumerate(file.layers):
        if number == len(layers):
            layers.append({"layer": number})
        layers[number].update(entry.model_dump())
    return {
        "kind": "dataset",
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
        "layers": _named(layers, index.model_layers),
        "range_samples": len(rows),
        "tokens": spread(columns["tokens"]),
        "state_tokens": spread(columns["state_tokens"]),
        "prompt_tokens": spread(prompt[prompt >= 0]),
        "answer_tokens": spread((columns["tokens"] - prompt)[prompt >= 0]),
        "unknown_prompts": int((prompt < 0).sum()),
        "labels": None if file.labels is None else file.labels.model_dump(),
        "provenance": file.provenance.to_json(),
    }


def inspect_sample(index: DatasetIndex, wanted: str) -> dict[str, Any]:
    """Return what one sample of a data set is made of.

    Args:
        index: Of the data set.
        wanted: Its member key, or its question id (then the question's first trace).

    Raises:
        ValueError: There is no such sample.
        ShardError: It cannot be read.
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
        "token_list": _token_list(
            meta.get("tokens") or (),
            meta.get("token_texts") or (),
            None if prompt < 0 else prompt,
            meta.get("token_logprobs"),
        ),
        "members": [_member(sample, name) for name in member_names() if sample.has_member(name)],
        "provenance": meta.get("provenance"),
    }


def inspect_raw(
    patterns: Sequence[str | Path], *, progress: Progress = no_progress
) -> dict[str, Any]:
    """Return what raw trace files are made of.

    Args:
        patterns: Files, folders or globs.
        progress: Draws over files.

    Raises:
        TraceError: A pattern matches nothing, or what is no trace file.
    """
    paths = expand_patterns(patterns)
    totals = _RawTotals()
    files = []
    for path in progress(paths, len(paths), "inspecting"):
        files.append(_inspect_file(path, totals))
    return {
        "kind": "raw",
        "source": ", ".join(map(str, patterns)),
        "files": files,
        "bytes": sum(file["bytes"] for file in files),
        "traces": totals.traces,
        "bad_traces": totals.bad,
        "first_problem": totals.first_problem,
        "questions": len(totals.questions),
        "keys": {name: shape.as_json() for name, shape in totals.keys.items()},
        "tokens": spread(totals.tokens),
        "prompt_tokens": spread(totals.prompts),
        "answer_tokens": spread(totals.answers),
        "unknown_prompts": totals.traces - len(totals.prompts),
        "classes": dict(totals.classes),
        "layers": totals.layers(),
        "remarks": dict(totals.remarks),
    }


def inspect_raw_sample(patterns: Sequence[str | Path], wanted: str) -> dict[str, Any]:
    """Return what the first trace of a question is made of, bad or not.

    Raises:
        ValueError: No file has such a trace.
        TraceError: A file before it cannot be read.
    """
    for path in expand_patterns(patterns):
        position = 0
        for content in raw_objects(path):
            for raw in _raws_of(content, str(path)):
                if isinstance(raw, Trace):
                    question = raw.question_id
                else:
                    question = str(raw.get("question_id")) if isinstance(raw, Mapping) else ""
                if question == wanted:
                    return _raw_sample(raw, path, position)
                position += 1
    raise ValueError(f"--sample {wanted}: no trace has this question id")


@dataclass
class _RawTotals:
    """Sums over raw files."""

    traces: int = 0
    bad: int = 0
    first_problem: str | None = None
    keys: dict[str, KeyShape] = field(default_factory=dict)
    questions: set[str] = field(default_factory=set)
    tokens: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)
    ranges: Ranges = field(default_factory=Ranges)
    model_layers: set[tuple[int, ...] | None] = field(default_factory=set)

    def describe(self, values: Mapping[Any, Any], prefix: str = "") -> None:
        """Note what stands under each key."""
        for key, value in values.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping):
                self.describe(value, f"{name}.")
            else:
                self.keys.setdefault(name, KeyShape()).add(*described(value))

    def take(self, trace: Trace) -> None:
        """Count a good trace."""
        count = trace.num_tokens
        self.traces += 1
        self.questions.add(trace.question_id)
        self.tokens.append(count)
        if trace.prompt_length is not None:
            self.prompts.append(trace.prompt_length)
            self.answers.append(count - trace.prompt_length)
        names = {None: "unlabelled", 0.0: "right", 1.0: "hallucinated"}
        self.classes[names[trace.label]] += 1
        self.remarks.update(trace.remarks)
        self.ranges.add(trace.hidden)
        self.model_layers.add(trace.layers)

    def layers(self) -> list[dict[str, Any]]:
        """Return a row a layer, with its number in the model where all traces say the same."""
        said = set(self.model_layers)
        return _named(self.ranges.as_json(), said.pop() if len(said) == 1 else None)

    def refuse(self, error: TraceError) -> None:
        """Count a bad trace or file."""
        self.first_problem = self.first_problem or str(error)


def _inspect_file(path: Path, totals: _RawTotals) -> dict[str, Any]:
    good, bad = totals.traces, totals.bad
    problem = None
    position = 0
    try:
        for content in raw_objects(path):
            if isinstance(content, Mapping):
                totals.describe(content)
                for trace in sequence_traces(content, str(path)):
                    totals.take(trace)
                continue
            for place in range(len(content)):
                raw, content[place] = content[place], None
                if isinstance(raw, Mapping):
                    totals.describe(raw)
                try:
                    totals.take(check_trace(raw, str(path), position))
                except TraceError as error:
                    totals.bad += 1
                    totals.refuse(error)
                position += 1
    except TraceError as error:
        totals.refuse(error)
        problem = error.detail
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "format": kind_of(path),
        "traces": totals.traces - good,
        "bad_traces": totals.bad - bad,
        "problem": problem,
    }


def _raws_of(content: list[Any] | Mapping[str, Any], file: str) -> Iterator[Any]:
    """Yield raw dicts, or the traces of a preprocessed file."""
    if isinstance(content, Mapping):
        yield from sequence_traces(content, file)
        return
    for place in range(len(content)):
        raw, content[place] = content[place], None
        yield raw


def _raw_sample(raw: Any, path: Path, position: int) -> dict[str, Any]:
    totals = _RawTotals()
    problem = None
    trace: Trace | None = raw if isinstance(raw, Trace) else None
    if trace is None:
        totals.describe(raw)
        try:
            trace = check_trace(raw, str(path), position)
        except TraceError as error:
            problem = error.detail
    else:
        totals.describe({"hidden_states": trace.hidden, "label": trace.label})
    found: dict[str, Any] = {
        "kind": "raw sample",
        "file": str(path),
        "position": position,
        "problem": problem,
        "keys": {name: shape.as_json() for name, shape in totals.keys.items()},
    }
    if trace is None:
        return found
    totals.take(trace)
    return {
        **found,
        "question_id": trace.question_id,
        "trace": trace.trace_number,
        "label": trace.label,
        "tokens": totals.tokens[0],
        "prompt_length": trace.prompt_length,
        "answer": trace.answer,
        "token_list": _token_list(
            trace.tokens.tolist(),
            trace.token_texts,
            trace.prompt_length,
            None if trace.token_logprobs is None else trace.token_logprobs.tolist(),
        ),
        "layers": totals.layers(),
        "remarks": list(trace.remarks),
    }


def _named(
    rows: list[dict[str, Any]], model_layers: tuple[int, ...] | None
) -> list[dict[str, Any]]:
    """Return rows of layers with each one's number in the model, where layers were chosen."""
    if model_layers is None:
        return rows
    return [
        {"layer": row["layer"], "model_layer": number, **row}
        for row, number in zip(rows, model_layers, strict=True)
    ]


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


def _token_list(
    tokens: Sequence[int],
    texts: Sequence[str],
    prompt_length: int | None,
    logprobs: Sequence[float | None] | None,
) -> list[dict[str, Any]]:
    rows = []
    for place, token in enumerate(tokens):
        answer = None if prompt_length is None else place - prompt_length
        known = logprobs is not None and answer is not None and 0 <= answer < len(logprobs)
        logprob = logprobs[answer] if known and logprobs and answer is not None else None
        rows.append(
            {
                "place": place,
                "id": int(token),
                "text": texts[place] if place < len(texts) else None,
                "part": None if answer is None else ("prompt" if answer < 0 else "answer"),
                "logprob": None if logprob is None or math.isinf(logprob) else logprob,
            }
        )
    return rows


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
