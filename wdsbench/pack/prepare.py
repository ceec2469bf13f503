"""Prepares traces for writing, each on its own; worker processes run this.

Nothing here depends on other traces; numbers, duplicates and splits are handled in ``samples``.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench.errors import PackError, TraceError
from wdsbench.pack.attention import stored_attention
from wdsbench.pack.labels import Labeller
from wdsbench.pack.options import PackOptions
from wdsbench.pack.reduce import Reduction
from wdsbench.pack.tally import LayerTotals
from wdsbench.records import Trace
from wdsbench.shards.format.kinds import HIDDEN, HIDDEN_SCALE
from wdsbench.shards.format.members import npy_pieces
from wdsbench.shards.format.tar import Pieces
from wdsbench.shards.format.wide import HALF_MAX, HalfStates, to_half
from wdsbench.traces.read import read_traces
from wdsbench.traces.scores import ScoreTable

_MAGNITUDE: Final = np.uint16(0x7FFF)
_BLOCK_ELEMENTS: Final = 64 * 1024

# <malloc.h>
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_KEEP: Final = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 1 << 26))
#: The limits that glibc's thresholds grow to (DEFAULT_MMAP_THRESHOLD_MAX on 64 bits, and twice).
_USUAL: Final = ((_M_MMAP_THRESHOLD, 1 << 25), (_M_TRIM_THRESHOLD, 1 << 26), (_M_TOP_PAD, 1 << 17))


@dataclass(frozen=True)
class Prepared:
    """One trace, ready to be written.

    Attributes:
        trace: The trace without its arrays of states and attention.
        shape: (L, D) of its states, before any reduction.
        state_tokens: Tokens with states, the last of ``tokens``.
        digest: XXH3-64 of the input states if the trace has no number; else None.
        members: Content by member name, except ``meta.json``.
        attention: Kinds of stored attention.
        heads: H if every trace must have the same number, else 0.
        from_graphs: The attention comes from edges in the source instead of maps.
        dropped: It is left out because it has no score; then the rest is empty.
        needs_number: Score and label depend on its number, which is not known yet.
    """

    trace: Trace
    shape: tuple[int, int]
    tokens: int
    state_tokens: int
    score: float | None
    label: float | None
    digest: int | None = None
    totals: LayerTotals = field(default_factory=lambda: LayerTotals.zeros(0))
    members: dict[str, Pieces] = field(default_factory=dict)
    attention: tuple[str, ...] = ()
    heads: int = 0
    from_graphs: bool = False
    dropped: bool = False
    needs_number: bool = False


@dataclass(frozen=True)
class Preparer:
    """Prepares traces; is sent to worker processes. Without ``scores`` labels come from traces."""

    options: PackOptions
    scores: ScoreTable | None
    reduction: Reduction | None = None

    def for_workers(self, workers: int) -> Preparer:
        """Return the preparer of one of several processes, which share the threads."""
        threads = max(1, self.options.threads // workers)
        return replace(self, options=replace(self.options, threads=threads))

    def file(self, path: Path) -> Iterator[Prepared]:
        """Yield the traces of one raw file, in order; TraceError or ScoreError if one is bad."""
        for trace in read_traces(path):
            yield self.trace(trace)

    def trace(self, trace: Trace) -> Prepared:
        """Return one prepared trace."""
        labeller = Labeller(self.scores, self.options)
        wait = labeller.needs_number(trace)
        score, label = (None, None) if wait else labeller.label(trace, trace.trace_number)
        if self.scores is not None and trace.question_id in self.scores.groups:
            trace = replace(trace, group=self.scores.groups[trace.question_id])
        hidden = trace.hidden
        layers, state_tokens, features = hidden.shape
        prepared = Prepared(
            trace=replace(
                trace, hidden=hidden[:, :0].copy(), attentions=None, graphs=None, reduced=None
            ),
            shape=(layers, features),
            tokens=trace.num_tokens,
            state_tokens=state_tokens,
            score=score,
            label=label,
            needs_number=wait,
            dropped=label is None and not wait and self.options.missing_score == "drop",
        )
        if prepared.dropped:
            return prepared
        digest = None
        if trace.trace_number is None:
            digest = xxhash.xxh3_64_intdigest(np.ascontiguousarray(hidden).data)
        if self.reduction is not None:
            if self.reduction.mean.shape != prepared.shape:
                raise TraceError.at(trace, other_shape(prepared.shape, self.reduction.mean.shape))
            hidden = self.reduction.apply(hidden)
        try:
            states = half_states(hidden, overflow=self.options.overflow)
        except PackError as error:
            raise TraceError.at(trace, str(error)) from error
        members: dict[str, Pieces] = {HIDDEN: npy_pieces(states.values)}
        if states.scale is not None:
            members[HIDDEN_SCALE] = npy_pieces(states.scale)
        made, attention, heads = stored_attention(trace, self.options)
        return replace(
            prepared,
            digest=digest,
            totals=LayerTotals.of(states),
            members={**members, **made},
            attention=attention,
            heads=heads,
            from_graphs=bool(attention) and trace.graphs is not None,
        )


def other_shape(shape: tuple[int, ...], before: tuple[int, ...]) -> str:
    """Return the error text of a trace whose shape differs from those before."""
    return (
        f"{shape[0]} layers of {shape[1]} features, the traces before have {before[0]} of"
        f" {before[1]}; pack each model into its own data set"
    )


def half_states(hidden: NDArray[Any], *, overflow: str) -> HalfStates:
    """Return ``[L, T, D]`` float states as `to_half` does, at memory speed if all are in range.

    PackError: NaN, or a layer beyond float16 under ``overflow="error"``.
    """
    layers = len(hidden)
    contiguous = np.ascontiguousarray(hidden).reshape(layers, -1)
    max_abs = np.array([_max_abs(layer) for layer in contiguous])
    if not bool((max_abs <= HALF_MAX).all()):  # NaN compares false
        return to_half(hidden, overflow=overflow)
    return HalfStates(
        values=np.ascontiguousarray(hidden, dtype=np.float16),
        scale=None,
        max_abs=max_abs,
        infinities=np.zeros(layers, np.int64),
        error_max=np.zeros(layers, np.float64),
    )


def _max_abs(layer: NDArray[Any]) -> float:
    """Return the largest magnitude of a flat layer, by blocks that stay in a core's cache."""
    largest = 0.0
    for first in range(0, layer.size, _BLOCK_ELEMENTS):
        block = layer[first : first + _BLOCK_ELEMENTS]
        if block.dtype == np.float16:  # magnitudes compare like their bits; NaN is largest
            bits = (block.view(np.uint16) & _MAGNITUDE).max()
            largest = float(np.fmax(largest, np.uint16(bits).view(np.float16)))
            if bits > 0x7C00:
                return float("nan")
        else:
            found = float(np.maximum(block.max(), -block.min()))
            if not found <= np.finfo(np.float64).max:
                return found
            largest = max(largest, found)
    return largest


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory until the block ends, then return it to the kernel.

    glibc returns large blocks at once, and the next array is mapped again, page by page. For an
    uncompressed float16 file these page faults take more time than all other work.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    for name, value in _KEEP:
        libc.mallopt(name, value)
    try:
        yield
    finally:
        for name, value in _USUAL:
            libc.mallopt(name, value)
        libc.malloc_trim(0)


def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "gnu_get_libc_version") else None
    except (OSError, TypeError):
        return None
