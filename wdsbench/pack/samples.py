"""Traces to samples: label, number, split, members; each checked against those that came before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench.errors import PackError, ScoreError
from wdsbench.pack.attention import AttentionPacker
from wdsbench.pack.options import PackOptions
from wdsbench.pack.reduce import Reduction
from wdsbench.pack.refusal import refusal
from wdsbench.pack.scores import label_of
from wdsbench.records import Trace
from wdsbench.shards.index import FieldEntry, LayerEntry
from wdsbench.shards.members import (
    HIDDEN,
    HIDDEN_SCALE,
    META,
    meta_member,
    npy_pieces,
)
from wdsbench.shards.names import make_key
from wdsbench.shards.tar import Pieces
from wdsbench.shards.wide import HalfStates, to_half
from wdsbench.shards.writer import DatasetWriter, SampleRow


@dataclass
class LayerTotals:
    """Sums over samples of what :func:`to_half` says of each layer."""

    max_abs: NDArray[np.float64]
    infinities: NDArray[np.int64]
    scaled: NDArray[np.int64]
    error_max: NDArray[np.float64]

    @classmethod
    def zeros(cls, layers: int) -> LayerTotals:
        return cls(
            np.zeros(layers),
            np.zeros(layers, np.int64),
            np.zeros(layers, np.int64),
            np.zeros(layers),
        )

    def add(self, states: HalfStates) -> None:
        np.maximum(self.max_abs, states.max_abs, out=self.max_abs)
        np.maximum(self.error_max, states.error_max, out=self.error_max)
        self.infinities += states.infinities
        if states.scale is not None:
            self.scaled += states.scale != 1

    def entries(self) -> list[LayerEntry]:
        return [
            LayerEntry(
                max_abs=float(m), infinities=int(i), scaled_samples=int(s), scale_error_max=float(e)
            )
            for m, i, s, e in zip(
                self.max_abs, self.infinities, self.scaled, self.error_max, strict=True
            )
        ]


@dataclass
class SamplePacker:
    """Turns checked traces into samples of a writer, one by one, and keeps count.

    Attributes that other rooms read: ``shape`` (L, D) once a trace has come, ``totals`` per layer,
    and the counters.
    """

    options: PackOptions
    scores: dict[str, float] | None
    writer: DatasetWriter
    reduction: Reduction | None = None
    shape: tuple[int, int] | None = None
    totals: LayerTotals = field(default_factory=lambda: LayerTotals.zeros(0))
    traces_of: Counter[str] = field(default_factory=Counter)
    seen: dict[tuple[str, int], str] = field(default_factory=dict)
    contents: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    split_of: dict[str, str] = field(default_factory=dict)
    remarks: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    unlabelled: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        """Prepare what looks at attention maps."""
        self.attention = AttentionPacker(self.options)

    def add(self, trace: Trace, split: str) -> None:
        """Check one trace against the others and write it."""
        score, label = self._judge(trace)
        if label is None:
            if self.options.missing_score == "drop":
                self.dropped += 1
                return
            self.unlabelled += 1
        number = self._number(trace)
        if self.split_of.setdefault(trace.question_id, split) != split:
            raise refusal(
                trace,
                f"stands in split {split} here and in {self.split_of[trace.question_id]} before; a"
                " question has one split: pack with --split-by question",
            )
        states = self._states(trace)
        members: dict[str, Pieces] = {
            HIDDEN: npy_pieces(states.values),
            META: meta_member(trace, number, Path(trace.file).name),
        }
        if states.scale is not None:
            members[HIDDEN_SCALE] = npy_pieces(states.scale)
        members.update(self.attention.members(trace, _tokens(trace)))
        row = SampleRow(
            key=make_key(trace.question_id, number),
            question_id=trace.question_id,
            trace=number,
            tokens=_tokens(trace),
            state_tokens=trace.hidden.shape[1],
            prompt_length=-1 if trace.prompt_length is None else trace.prompt_length,
            label=np.nan if label is None else label,
            score=np.nan if score is None else score,
        )
        self.writer.add(split, row, members)
        self.remarks.update(trace.remarks)
        self.samples += 1

    def _judge(self, trace: Trace) -> tuple[float | None, float | None]:
        """Return (score, label) of a trace, None where unknown."""
        if self.scores is None:
            score, label = None, trace.label
        else:
            score = self.scores.get(trace.question_id)
            label = None if score is None else label_of(score, self.options.threshold)
        if label is None and self.options.missing_score == "error":
            source = (
                "the score file has no line for it"
                if self.scores is not None
                else "no --scores and no label"
            )
            raise ScoreError(
                f"{trace.file}, trace {trace.position}, question {trace.question_id}: {source}; "
                f"give the score, or pack"
                " with --missing-score drop or keep"
            )
        return score, label

    def _number(self, trace: Trace) -> int:
        """Return the trace number; traces that do not say theirs are numbered in order of
        appearance.
        """
        place = f"{trace.file}, trace {trace.position}"
        if trace.trace_number is None:
            # Within a file equal traces may be equal answers; across files they are a copy.
            digest = xxhash.xxh3_64_intdigest(np.ascontiguousarray(trace.hidden).data)
            file, first = self.contents.setdefault((trace.question_id, digest), (trace.file, place))
            if file != trace.file:
                raise refusal(
                    trace,
                    f"is the same trace as {first}; if the file is no copy, give the traces a"
                    " trace_number",
                )
        number = (
            self.traces_of[trace.question_id] if trace.trace_number is None else trace.trace_number
        )
        self.traces_of[trace.question_id] += 1
        if (trace.question_id, number) in self.seen:
            raise refusal(
                trace, f"has trace number {number}, as has {self.seen[trace.question_id, number]}"
            )
        self.seen[trace.question_id, number] = place
        return number

    def _states(self, trace: Trace) -> HalfStates:
        layers, _, features = trace.hidden.shape
        if self.shape is None:
            self.shape = (layers, features)
            self.totals = LayerTotals.zeros(layers)
        if self.shape != (layers, features):
            raise refusal(
                trace,
                f"{layers} layers of {features} features, the traces before have {self.shape[0]} "
                f"of {self.shape[1]};"
                " pack each model into its own data set",
            )
        hidden = trace.hidden if self.reduction is None else self.reduction.apply(trace.hidden)
        try:
            states = to_half(hidden, overflow=self.options.overflow)
        except PackError as error:
            raise refusal(trace, str(error)) from error
        self.totals.add(states)
        return states


def _tokens(trace: Trace) -> int:
    """Return T: the tokens of the sequence; where the source has none, those of the states."""
    return trace.tokens.size or trace.hidden.shape[1]


def fields_of(run: SamplePacker) -> dict[str, FieldEntry]:
    """Return what the index says of every field."""
    assert run.shape is not None
    layers, features = run.shape
    notes = []
    if run.reduction is not None:
        notes.append(f"{run.options.reduce} of [L, T, {features}]")
        features = run.reduction.components.shape[1]
    scaled = int(run.totals.scaled.max(initial=0))
    if scaled:
        notes.append("scaled layers: multiply by hidden_scale")
    fields = {
        "hidden": FieldEntry(
            dtype="<f2",
            shape=[layers, None, features],
            samples=run.samples,
            note="; ".join(notes),
        ),
        "meta": FieldEntry(dtype="json", shape=[], samples=run.samples),
    }
    return {**fields, **run.attention.fields(layers)}
