"""Raw trace files and scores in, a data set out.

Files are read one after the other and traces handed on one by one, so memory is bounded by one
file. Anything wrong stops the run with file, trace and question named and leaves nothing behind;
nothing is skipped that the caller has not asked to skip, and what is skipped is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

import wdsbench
from wdsbench.errors import PackError, ScoreError, TraceError
from wdsbench.pack.edges import EdgeRule, edges_of
from wdsbench.pack.scores import label_of, read_scores
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Trace
from wdsbench.shards.index import FieldEntry, IndexFile, LayerEntry
from wdsbench.shards.members import (
    EDGES_WEIGHT,
    HIDDEN,
    HIDDEN_SCALE,
    META,
    edge_members,
    meta_member,
    npy_pieces,
)
from wdsbench.shards.names import make_key, split_of_question, splits_of_files
from wdsbench.shards.tar import Pieces
from wdsbench.shards.wide import HalfStates, to_half
from wdsbench.shards.writer import DatasetWriter, SampleRow
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces

ATTENTION_KINDS = ("edges",)
ATTENTION_PLANNED = ("full", "heads", "sketch")


@dataclass(frozen=True)
class PackOptions:
    """How a data set is packed.

    Attributes:
        score_column: Column of the score file; None: ``bleurt_score``, or the only one.
        threshold: A trace is hallucinated (label 1) where its score is below this.
        missing_score: ``"error"``, ``"drop"`` the trace, or ``"keep"`` it unlabelled.
        split_by: ``"question"`` (hash of its id) or ``"file"`` (input files dealt 70/15/15).
        attention: What is kept of the attention maps; a subset of ``ATTENTION_KINDS``.
        edge_rule: ``top:SHARE`` or ``threshold:WEIGHT``.
        overflow: ``"scale"`` layers beyond float16 by a power of two, or ``"error"``.
        shard_mb: Size at which a shard is closed, in megabytes (1e6 bytes).
    """

    score_column: str | None = None
    threshold: float = 0.5
    missing_score: str = "error"
    split_by: str = "question"
    attention: tuple[str, ...] = ("edges",)
    edge_rule: str = "top:0.35"
    overflow: str = "scale"
    shard_mb: float = 256.0

    def __post_init__(self) -> None:
        """Check the words that have a fixed vocabulary.

        Raises:
            ValueError: A value outside it; what is allowed is named.
        """
        for name, allowed in (
            ("missing_score", ("error", "drop", "keep")),
            ("split_by", ("question", "file")),
            ("overflow", ("scale", "error")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
        for kind in self.attention:
            if kind in ATTENTION_PLANNED:
                raise ValueError(
                    f"attention: {kind!r} is not packed by this version; it packs {ATTENTION_KINDS}"
                )
            if kind not in ATTENTION_KINDS:
                raise ValueError(
                    f"attention: {kind!r} is not one of {', '.join(ATTENTION_KINDS)}, none"
                )
        EdgeRule.parse(self.edge_rule)


@dataclass
class PackReport:
    """What a run did.

    Attributes:
        index: The data set's index.
        samples: Samples written.
        bytes_written: Bytes of all shards.
        dropped: Traces left out for want of a score (``missing_score="drop"``).
        unlabelled: Traces kept without a label.
        without_attention: Traces that brought no attention although it was asked for.
        remarks: What readers changed to bring traces into form, and how often.
    """

    index: IndexFile
    samples: int
    bytes_written: int
    dropped: int
    unlabelled: int
    without_attention: int
    remarks: dict[str, int]


@dataclass
class _LayerTotals:
    """Sums over samples of what :func:`to_half` says of each layer."""

    max_abs: NDArray[np.float64]
    infinities: NDArray[np.int64]
    scaled: NDArray[np.int64]
    error_max: NDArray[np.float64]

    @classmethod
    def zeros(cls, layers: int) -> _LayerTotals:
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
class _Run:
    """The state of one packing run."""

    options: PackOptions
    scores: dict[str, float] | None
    writer: DatasetWriter
    shape: tuple[int, int] | None = None
    totals: _LayerTotals = field(default_factory=lambda: _LayerTotals.zeros(0))
    traces_of: Counter[str] = field(default_factory=Counter)
    seen: dict[tuple[str, int], str] = field(default_factory=dict)
    contents: dict[tuple[str, int], str] = field(default_factory=dict)
    split_of: dict[str, str] = field(default_factory=dict)
    remarks: Counter[str] = field(default_factory=Counter)
    with_edges: int = 0
    dropped: int = 0
    unlabelled: int = 0
    samples: int = 0

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
            raise _at(
                trace,
                f"stands in split {split} here and in {self.split_of[trace.question_id]} before; a "
                f"question has one"
                " split: pack with --split-by question",
            )
        states = self._states(trace)
        members: dict[str, Pieces] = {
            HIDDEN: npy_pieces(states.values),
            META: meta_member(trace, number, Path(trace.file).name),
        }
        if states.scale is not None:
            members[HIDDEN_SCALE] = npy_pieces(states.scale)
        if "edges" in self.options.attention:
            edges = edges_of(trace, EdgeRule.parse(self.options.edge_rule))
            if edges is not None:
                members.update(edge_members(edges, _tokens(trace)))
                self.with_edges += 1
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
        digest = (
            trace.question_id,
            xxhash.xxh3_64_intdigest(np.ascontiguousarray(trace.hidden).data),
        )
        if digest in self.contents:
            raise _at(
                trace, f"is the same trace as {self.contents[digest]}; does a pattern match a copy?"
            )
        self.contents[digest] = place
        number = (
            self.traces_of[trace.question_id] if trace.trace_number is None else trace.trace_number
        )
        self.traces_of[trace.question_id] += 1
        if (trace.question_id, number) in self.seen:
            raise _at(
                trace, f"has trace number {number}, as has {self.seen[trace.question_id, number]}"
            )
        self.seen[trace.question_id, number] = place
        return number

    def _states(self, trace: Trace) -> HalfStates:
        layers, _, features = trace.hidden.shape
        if self.shape is None:
            self.shape = (layers, features)
            self.totals = _LayerTotals.zeros(layers)
        if self.shape != (layers, features):
            raise _at(
                trace,
                f"{layers} layers of {features} features, the traces before have {self.shape[0]} "
                f"of {self.shape[1]};"
                " pack each model into its own data set",
            )
        try:
            states = to_half(trace.hidden, overflow=self.options.overflow)
        except PackError as error:
            raise _at(trace, str(error)) from error
        self.totals.add(states)
        return states


def pack(
    patterns: Sequence[str],
    out: Path,
    *,
    scores: Path | None = None,
    options: PackOptions | None = None,
    progress: Progress = no_progress,
) -> PackReport:
    """Pack raw trace files into a data set.

    Args:
        patterns: Paths or glob patterns of raw files.
        out: The data set's folder; made where it does not exist.
        scores: CSV of scores; None: labels come from the files.
        options: See :class:`PackOptions`.
        progress: Draws over files.

    Returns:
        What was written.

    Raises:
        TraceError: A file or trace that cannot be used.
        ScoreError: A bad score file, or a trace without a score.
        PackError: The folder cannot be used, or the disk is full.
        ValueError: No file matches a pattern.

    Whatever is raised, ``out`` is left as it was found.
    """
    options = options or PackOptions()
    files = expand_patterns(patterns)
    table, column = (None, None) if scores is None else read_scores(scores, options.score_column)
    file_splits = splits_of_files([path.name for path in files])
    writer = DatasetWriter(out, shard_mb=options.shard_mb)
    run = _Run(options, table, writer)
    inputs = []
    try:
        for number, path in enumerate(progress(files, len(files), "packing")):
            before = run.samples
            for trace in read_traces(path):
                by_file = options.split_by == "file"
                run.add(
                    trace, file_splits[number] if by_file else split_of_question(trace.question_id)
                )
            inputs.append({"file": path.name, "samples": run.samples - before})
        if run.shape is None:
            raise PackError(
                f"no trace to pack in {len(files)} files ({run.dropped} dropped for want of a "
                f"score)"
            )
        index = writer.finish(
            fields=_fields(run),
            layers=run.totals.entries(),
            provenance=_provenance(run, inputs, scores, column),
        )
    except BaseException:
        writer.abort()
        raise
    return PackReport(
        index=index,
        samples=run.samples,
        bytes_written=sum(shard.filesize for shard in index.shardlist),
        dropped=run.dropped,
        unlabelled=run.unlabelled,
        without_attention=run.samples - run.with_edges if "edges" in options.attention else 0,
        remarks=dict(run.remarks),
    )


def _tokens(trace: Trace) -> int:
    """Return T: the tokens of the sequence; where the source has none, those of the states."""
    return trace.tokens.size or trace.hidden.shape[1]


def _at(trace: Trace, detail: str) -> TraceError:
    return TraceError(
        detail, file=trace.file, position=trace.position, question_id=trace.question_id
    )


def _fields(run: _Run) -> dict[str, FieldEntry]:
    assert run.shape is not None
    layers, features = run.shape
    scaled = int(run.totals.scaled.max(initial=0))
    fields = {
        "hidden": FieldEntry(
            dtype="<f2",
            shape=[layers, None, features],
            samples=run.samples,
            note="scaled layers: multiply by hidden_scale" if scaled else "",
        ),
        "meta": FieldEntry(dtype="json", shape=[], samples=run.samples),
    }
    if run.with_edges:
        fields["edges"] = FieldEntry(
            dtype="<f2",
            shape=[None],
            samples=run.with_edges,
            note=f"{run.options.edge_rule} of the mean over heads, as {EDGES_WEIGHT}",
        )
    return fields


def _provenance(
    run: _Run, inputs: list[dict[str, Any]], scores: Path | None, column: str | None
) -> dict[str, Any]:
    """Return where the data came from: names, not paths, so that the same input gives the same
    bytes anywhere.
    """
    return {
        "wdsbench": wdsbench.__version__,
        "inputs": inputs,
        "scores": None if scores is None else scores.name,
        "score_column": column,
        "threshold": run.options.threshold,
        "missing_score": run.options.missing_score,
        "dropped": run.dropped,
        "split_by": run.options.split_by,
        "attention": list(run.options.attention),
        "edge_rule": run.options.edge_rule,
        "remarks": dict(sorted(run.remarks.items())),
    }
