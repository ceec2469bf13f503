"""Inspect raw trace files: keys, shapes, dtypes, sizes, ranges and classes, as JSON values.

Files are read one at a time by the safe readers. Bad traces are counted, and their keys described,
like those of good ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wdsbench.errors import TraceError
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Trace
from wdsbench.traces.check import check_trace
from wdsbench.traces.files import expand_patterns, kind_of
from wdsbench.traces.read import raw_objects
from wdsbench.traces.tensors import sequence_traces
from wdsbench.view.shapes import KeyShape, Ranges, described, numbered_layers, spread, token_rows
from wdsbench.view.source import raw_traces, released


def inspect_raw(
    patterns: Sequence[str | Path], *, progress: Progress = no_progress
) -> dict[str, Any]:
    """Return keys, sizes, ranges, lengths and classes of raw trace files; TraceError if a pattern
    matches nothing, or a file that is not a trace file.
    """
    paths = expand_patterns(patterns)
    totals = _RawTotals()
    files = [_inspect_file(path, totals) for path in progress(paths, len(paths), "inspecting")]
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
    """Return keys, tokens and ranges of the first trace of a question, even a bad one; ValueError
    if there is none, TraceError if a file before it cannot be read.
    """
    for path in expand_patterns(patterns):
        for position, raw in enumerate(raw_traces(path)):
            if isinstance(raw, TraceError):
                raise raw
            if isinstance(raw, Trace):
                question = raw.question_id
            else:
                question = str(raw.get("question_id")) if isinstance(raw, Mapping) else ""
            if question == wanted:
                return _raw_sample(raw, path, position)
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
        """Record dtype and shape of every key."""
        for key, value in values.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping):
                self.describe(value, f"{name}.")
            else:
                self.keys.setdefault(name, KeyShape()).add(*described(value))

    def add(self, trace: Trace) -> None:
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
        """Return one row per layer, with its number in the model if all traces agree on it."""
        numbers = next(iter(self.model_layers)) if len(self.model_layers) == 1 else None
        return numbered_layers(self.ranges.as_json(), numbers)


def _inspect_file(path: Path, totals: _RawTotals) -> dict[str, Any]:
    good, bad = totals.traces, totals.bad
    problem = None
    position = 0
    try:
        for content in raw_objects(path):
            if isinstance(content, Mapping):
                totals.describe(content)
                for found in sequence_traces(content, str(path)):
                    if isinstance(found, TraceError):
                        raise found
                    totals.add(found)
                continue
            for raw in released(content):
                if isinstance(raw, Mapping):
                    totals.describe(raw)
                try:
                    totals.add(check_trace(raw, str(path), position))
                except TraceError as error:
                    totals.bad += 1
                    totals.first_problem = totals.first_problem or str(error)
                position += 1
    except TraceError as error:
        totals.first_problem = totals.first_problem or str(error)
        problem = error.detail
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "format": kind_of(path),
        "traces": totals.traces - good,
        "bad_traces": totals.bad - bad,
        "problem": problem,
    }


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
    totals.add(trace)
    return {
        **found,
        "question_id": trace.question_id,
        "trace": trace.trace_number,
        "label": trace.label,
        "tokens": totals.tokens[0],
        "prompt_length": trace.prompt_length,
        "answer": trace.answer,
        "token_list": token_rows(
            trace.tokens.tolist(),
            trace.token_texts,
            trace.prompt_length,
            None if trace.token_logprobs is None else trace.token_logprobs.tolist(),
        ),
        "layers": totals.layers(),
        "remarks": list(trace.remarks),
    }
