"""Builds samples from prepared traces: number, split, row; each is checked against those before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from wdsbench.errors import TraceError
from wdsbench.pack.attention import attention_fields
from wdsbench.pack.labels import NumberedLabeller
from wdsbench.pack.options import PackOptions
from wdsbench.pack.prepare import Prepared, other_shape
from wdsbench.pack.reduce import Reduction
from wdsbench.pack.tally import Tally
from wdsbench.records import SPLITS, Trace
from wdsbench.shards.format.index import FieldEntry, layers_in_words
from wdsbench.shards.format.kinds import HIDDEN, META
from wdsbench.shards.format.members import meta_member
from wdsbench.shards.format.names import make_key
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.write.writer import DatasetWriter


@dataclass
class SampleBuilder:
    """Adds prepared traces to a writer as samples and counts them.

    Attributes:
        shape: (L, D) of the states; None before the first trace.
        layers: Layers of the model that traces hold, as in the first trace; None: all.
        heads: H of every trace where it matters; 0 before the first.
        closed: Counts over closed shards and over the data set that is appended to.
        of_split: Counts over the open shard of each split.
        traces_of: Traces of each question, including dropped ones.
        seen: Place of each (question, trace number).
        contents: File and place of each (question, digest of states) without a number.
        stored: Key of each (question, XXH3 of hidden.npy) of the data set that is appended to.
        dropped_of: Dropped traces of the current file, by question.
        numbered: Samples whose number was assigned here.
    """

    options: PackOptions
    labeller: NumberedLabeller
    reduction: Reduction | None = None
    shape: tuple[int, int] | None = None
    layers: tuple[int, ...] | None = None
    heads: int = 0
    closed: Tally = field(default_factory=Tally)
    of_split: dict[str, Tally] = field(default_factory=lambda: {split: Tally() for split in SPLITS})
    traces_of: Counter[str] = field(default_factory=Counter)
    seen: dict[tuple[str, int], str] = field(default_factory=dict)
    contents: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    stored: dict[tuple[str, int], str] = field(default_factory=dict)
    split_of: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    dropped_of: Counter[str] = field(default_factory=Counter)
    numbered: int = 0
    samples: int = 0

    @property
    def tally(self) -> Tally:
        """Counts over all samples."""
        whole = Tally()
        for part in (self.closed, *self.of_split.values()):
            whole.add(part)
        return whole

    def summary(self, split: str) -> dict[str, Any]:
        """Return the counts over a shard that is being closed, as JSON, and reset them."""
        part, self.of_split[split] = self.of_split[split], Tally()
        self.closed.add(part)
        return {
            "tally": part.to_json(),
            "shape": self.shape,
            "layers": self.layers,
            "heads": self.heads,
        }

    def add(
        self,
        prepared: Prepared,
        split: str,
        writer: DatasetWriter,
        *,
        file: int,
        finished: bool = False,
    ) -> None:
        """Check one trace against those before and write it; TraceError if it is a duplicate, or
        its split, shape or layers differ; ScoreError if its score is missing or ambiguous.

        ``file`` is the number of its file, for the journal. A trace in a ``finished`` shard is
        checked, but not written or counted.
        """
        trace = prepared.trace
        if prepared.dropped:
            # It keeps its number: the traces after it must match the rows of the score file.
            self.traces_of[trace.question_id] += 1
        else:
            number = self._number(prepared)
            if prepared.needs_number:
                prepared = self.labeller.label(prepared, number)
        if prepared.dropped:
            self.dropped += 1
            self.dropped_of[trace.question_id] += 1
            return
        self._check_split(trace, split)
        if self.shape is None:
            self.shape, self.layers = prepared.shape, trace.layers
        if self.shape != prepared.shape:
            raise TraceError.at(trace, other_shape(prepared.shape, self.shape))
        if self.layers != trace.layers:
            raise TraceError.at(
                trace,
                f"holds {layers_in_words(trace.layers)}, the traces before"
                f" {layers_in_words(self.layers)}; extract them with the same --layers, or pack"
                " each choice into its own data set",
            )
        self._check_heads(trace, prepared.heads)
        self.samples += 1
        self.numbered += prepared.digest is not None
        if finished:
            return
        part = self.of_split[split]
        part.add(
            Tally(
                layers=prepared.totals,
                samples=1,
                unlabelled=prepared.label is None,
                attention=Counter(prepared.attention),
                with_attention=bool(prepared.attention),
                graphs=prepared.from_graphs,
                remarks=Counter(trace.remarks),
            )
        )
        row = SampleRow(
            key=make_key(trace.question_id, number),
            question_id=trace.question_id,
            trace=number,
            tokens=prepared.tokens,
            state_tokens=prepared.state_tokens,
            prompt_length=-1 if trace.prompt_length is None else trace.prompt_length,
            label=np.nan if prepared.label is None else prepared.label,
            score=np.nan if prepared.score is None else prepared.score,
        )
        name = Path(trace.file).name
        note = [file, trace.position, prepared.digest]
        if trace.origin is not None:
            name, position = trace.origin
            trace = replace(trace, position=position)
        meta = meta_member(trace, number, name)
        writer.add(split, row, {**prepared.members, META: meta}, note)

    def add_finished(
        self, row: SampleRow, split: str, path: str, position: int, digest: int | None
    ) -> None:
        """Add a sample of a finished shard whose file is not read again."""
        place = f"{path}, trace {position}"
        if digest is not None:
            self.numbered += 1
            self.labeller.add_finished(row.question_id, place)
            self.contents.setdefault((row.question_id, digest), (path, place))
        self.traces_of[row.question_id] += 1
        self.seen[row.question_id, row.trace] = place
        self.split_of[row.question_id] = split
        self.samples += 1

    def _number(self, prepared: Prepared) -> int:
        """Return the trace's number; traces without one are numbered in order of appearance."""
        trace = prepared.trace
        place = f"{trace.file}, trace {trace.position}"
        if prepared.digest is not None:
            # Equal traces within a file may be equal answers; across files they are copies.
            file, first = self.contents.setdefault(
                (trace.question_id, prepared.digest), (trace.file, place)
            )
            if file != trace.file:
                raise TraceError.at(
                    trace,
                    f"is the same trace as {first}; if the file is not a copy, give the traces a"
                    " trace_number",
                )
            self._check_stored(prepared)
        number = (
            self.traces_of[trace.question_id] if trace.trace_number is None else trace.trace_number
        )
        self.traces_of[trace.question_id] += 1
        if (trace.question_id, number) in self.seen:
            raise TraceError.at(
                trace, f"has trace number {number}, as has {self.seen[trace.question_id, number]}"
            )
        self.seen[trace.question_id, number] = place
        return number

    def _check_stored(self, prepared: Prepared) -> None:
        """Refuse a trace that is in the data set that is appended to."""
        if not self.stored:
            return
        digest = xxhash.xxh3_64()
        for piece in prepared.members[HIDDEN]:
            digest.update(piece if isinstance(piece, bytes) else piece.data)
        key = self.stored.get((prepared.trace.question_id, digest.intdigest()))
        if key is not None:
            raise TraceError.at(
                prepared.trace,
                f"is the same trace as sample {key} of the data set; append each file once, or, if"
                " it is not a copy, give the traces a trace_number",
            )

    def _check_split(self, trace: Trace, split: str) -> None:
        before = self.split_of.setdefault(trace.question_id, split)
        if before != split:
            raise TraceError.at(
                trace,
                f"is in split {split}, an earlier trace of its question in {before}; a question has"
                " one split: pack with --split-by question",
            )

    def _check_heads(self, trace: Trace, heads: int) -> None:
        if heads and self.heads not in (0, heads):
            raise TraceError.at(
                trace,
                f"layers of {heads} heads; heads, sketch and full need the same number in every"
                f" layer and trace, which had {self.heads}: pack with --attention edges",
            )
        self.heads = heads or self.heads


def fields_of(samples: SampleBuilder) -> dict[str, FieldEntry]:
    """Return the index's entries about fields."""
    assert samples.shape is not None
    layers, features = samples.shape
    tally = samples.tally
    notes = []
    if samples.reduction is not None:
        notes.append(f"{samples.options.reduce} of [L, T, {features}]")
        features = samples.reduction.components.shape[1]
    if tally.layers.scaled.max(initial=0):
        notes.append("scaled layers: multiply by hidden_scale")
    fields = {
        "hidden": FieldEntry(
            dtype="<f2",
            shape=[layers, None, features],
            samples=tally.samples,
            note="; ".join(notes),
        ),
        "meta": FieldEntry(dtype="json", shape=[], samples=tally.samples),
    }
    return {**fields, **attention_fields(samples.options, layers, samples.heads, tally)}
