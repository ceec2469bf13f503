"""Prepares traces for writing, each on its own; worker processes run this.

Nothing here depends on other traces; numbers, duplicates and splits are handled in ``samples``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from wdsbench.errors import PackError, TraceError
from wdsbench.pack.attention import AttentionParts, attention_parts
from wdsbench.pack.labels import Labeller
from wdsbench.pack.options import PackOptions
from wdsbench.pack.reduce import Reduction
from wdsbench.pack.states import half_states
from wdsbench.pack.tally import LayerTotals
from wdsbench.records import Trace
from wdsbench.shards.format.kinds import HIDDEN, HIDDEN_SCALE
from wdsbench.shards.format.members import npy_pieces
from wdsbench.shards.format.tar import Pieces
from wdsbench.traces.read import read_traces
from wdsbench.traces.scores import ScoreTable


@dataclass(frozen=True)
class Prepared:
    """One trace, ready to be written.

    Attributes:
        trace: The trace without its arrays of states and attention.
        shape: (L, D) of its states, before any reduction.
        tokens: T of the sequence.
        state_tokens: T of the states.
        score: None where unknown.
        label: None where unknown.
        digest: XXH3-64 of the input states if the trace has no number; else None.
        totals: Totals over the states.
        members: Content by member name, except ``meta.json``.
        attention: The stored attention; its members are among ``members``.
        dropped: True if it is left out because it has no score; then the rest is empty.
        needs_number: True if score and label depend on its number, which is not known yet.
    """

    trace: Trace
    shape: tuple[int, int]
    tokens: int
    state_tokens: int
    score: float | None
    label: float | None
    digest: int | None
    totals: LayerTotals
    members: dict[str, Pieces]
    attention: AttentionParts
    dropped: bool = False
    needs_number: bool = False


@dataclass(frozen=True)
class Preparer:
    """Prepares traces; is sent to worker processes.

    Attributes:
        options: See :class:`PackOptions`.
        scores: None: labels come from the traces.
        reduction: Applied to states; None: all features are stored.
    """

    options: PackOptions
    scores: ScoreTable | None
    reduction: Reduction | None = None

    def file(self, path: Path) -> Iterator[Prepared]:
        """Yield the traces of one raw file, in order.

        Raises:
            TraceError: The file or a trace cannot be used.
            ScoreError: A trace without a score.
        """
        for trace in read_traces(path):
            yield self.trace(trace)

    def trace(self, trace: Trace) -> Prepared:
        """Return one prepared trace."""
        labeller = Labeller(self.scores, self.options)
        wait = labeller.needs_number(trace)
        score, label = (None, None) if wait else labeller.label(trace, trace.trace_number)
        layers, state_tokens, features = trace.hidden.shape
        light = replace(
            trace, hidden=trace.hidden[:, :0].copy(), attentions=None, graphs=None, reduced=None
        )
        prepared = Prepared(
            trace=light,
            shape=(layers, features),
            tokens=tokens_of(trace),
            state_tokens=state_tokens,
            score=score,
            label=label,
            digest=None,
            totals=LayerTotals.zeros(layers),
            members={},
            attention=AttentionParts({}, (), 0, from_graphs=False),
            needs_number=wait,
        )
        if label is None and not wait and self.options.missing_score == "drop":
            return replace(prepared, dropped=True)
        digest = None
        if trace.trace_number is None:
            digest = xxhash.xxh3_64_intdigest(np.ascontiguousarray(trace.hidden).data)
        hidden = trace.hidden
        if self.reduction is not None:
            if self.reduction.mean.shape != (layers, features):
                raise TraceError.at(
                    trace, other_shape((layers, features), self.reduction.mean.shape)
                )
            hidden = self.reduction.apply(hidden)
        try:
            states = half_states(hidden, overflow=self.options.overflow)
        except PackError as error:
            raise TraceError.at(trace, str(error)) from error
        members: dict[str, Pieces] = {HIDDEN: npy_pieces(states.values)}
        if states.scale is not None:
            members[HIDDEN_SCALE] = npy_pieces(states.scale)
        attention = attention_parts(trace, prepared.tokens, self.options)
        members.update(attention.members)
        return replace(
            prepared,
            digest=digest,
            totals=LayerTotals.of(states),
            members=members,
            attention=replace(attention, members={}),
        )


def tokens_of(trace: Trace) -> int:
    """Return T: the tokens of the sequence, or of the states if the source has no tokens."""
    return trace.num_tokens


def other_shape(shape: tuple[int, ...], before: tuple[int, ...]) -> str:
    """Return the error text of a trace whose shape differs from those before."""
    return (
        f"{shape[0]} layers of {shape[1]} features, the traces before have {before[0]} of"
        f" {before[1]}; pack each model into its own data set"
    )
