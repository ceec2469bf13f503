"""Comparison of stored traces with the model that made them.

Each selected trace is run again in one plain forward pass over its stored tokens, without batch,
padding or cache, and compared with the stored data. This finds errors of batching and padding,
wrong layers, tokens that do not belong to the states, another model or another precision.

**Bounds.** Two errors are allowed, both relative to the largest magnitude ``s`` of the token's
state in its layer (large models have a few tokens with huge states):

- Rounding to float16, stored and recomputed: half of the last of 11 binary digits each,
  ``2 * 2^-11 * s``.
- Rounding in the model by ``u``: 2^-8 in bfloat16, 2^-11 in float16, and in float32 2^-24 times 8
  for sums of thousands of terms. A batch multiplies in another order, so its roundings differ:
  about ten per layer in each of two passes. They are independent and add as square roots; the
  largest of thousands is four deviations out; their scale is the root mean square of the state, at
  most a third of ``s``. ``sqrt(10) * sqrt(2) * 4 / 3 < 6``, so the bound after layer l is
  ``6 * sqrt(l + 1) * u * s``.

Logits and attention scores are projections of the same states and spread over some units
(``SPREAD``). Log-probabilities differ by at most ``6 * sqrt(L) * u`` of that or of themselves,
whichever is larger. A probability p differs by p (1 - p) times twice that, at most half of it, and
by rounding to float16, 2^-12 in each pass.

Measured on the demo's model (6 layers, 60 traces): a bfloat16 or float16 pass against float32
reaches 0.3 to 0.54 of the bound for states, 0.43 for attention and 0.1 for log-probabilities; two
float32 passes reach 0.1 to 0.5, mostly by rounding to float16. A model with random weights so large
that it amplifies its errors may exceed the bound in half precision.

A fault is of the order of the states, 1 in these units. float32 allows 0.001 in every layer,
bfloat16 0.02 in the first and 0.13 in the 32nd, so small faults of late layers are found in float32
only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.errors import ModelError
from wdsbench.llm.questions import Question
from wdsbench.llm.states import Answered, StateReader
from wdsbench.llm.stored import StoredTrace
from wdsbench.progress import Progress, no_progress
from wdsbench.records import EdgeLists
from wdsbench.shards.format.index import layers_in_words
from wdsbench.traces.attention import AttentionRules, EdgeRule

_HALF_ROUNDING: Final = 2.0**-11  # half of the last of float16's 11 binary digits
_HALF_STEP: Final = 2.0**-24  # distance of float16's subnormal and smallest normal numbers
_UNIT_ROUNDOFF: Final = {
    torch.float32: 8 * 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
_GROWTH: Final = 6.0  # factor of the module docstring
#: Spread of logits and attention scores of language models.
SPREAD: Final = 8.0
_KINDS: Final = ("states", "logprobs", "attention", "edges", "heads")


@dataclass(frozen=True)
class Deviation:
    """The largest deviation of one kind in one layer, relative to its bound."""

    kind: str  # ``states``, ``logprobs``, ``attention``, ``edges`` or ``heads``
    layer: int | None  # layer of the model; None for log-probabilities
    deviation: float  # absolute difference of stored and computed value
    allowed: float  # bound (module docstring)
    place: str  # file or shard of the trace, and its place there
    question_id: str
    token: int  # place of the token in the trace

    @property
    def ratio(self) -> float:
        """Deviation over its bound; above 1 is an error."""
        return self.deviation / self.allowed


@dataclass
class RecomputeReport:
    """Result of recomputing.

    Attributes:
        traces: Number of traces compared.
        wrong: Place of each trace that exceeds a bound.
        deviations: The largest of each kind and layer.
        notes: Data that could not be compared, with the reason.
    """

    traces: int = 0
    wrong: list[str] = field(default_factory=list)
    deviations: list[Deviation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """True if something was compared and every deviation is within its bound."""
        return not self.wrong and bool(self.deviations)

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; an infinity is None."""
        return {
            "traces": self.traces,
            "sound": self.sound,
            "wrong": self.wrong,
            "deviations": [
                {
                    **asdict(found),
                    "deviation": found.deviation if math.isfinite(found.deviation) else None,
                    "ratio": found.ratio if math.isfinite(found.ratio) else None,
                }
                for found in self.deviations
            ],
            "notes": self.notes,
        }


def recompute(
    traces: Sequence[StoredTrace],
    model: Any,
    tokenizer: Any,
    *,
    layers: Sequence[int] | None = None,
    progress: Progress = no_progress,
) -> RecomputeReport:
    """Run stored traces again and compare them.

    Args:
        traces: Traces of module ``stored``.
        model: The model that made them, in its precision at that time.
        tokenizer: Its tokenizer.
        layers: Stored layers, from 0; None: those that the traces name, or all.
        progress: Wraps the traces.

    Raises:
        ModelError: The model has other layers or features than the traces, or fewer tokens.
        ValueError: The traces name other layers than ``layers``.
    """
    report = RecomputeReport()
    worst: dict[tuple[str, int | None], Deviation] = {}
    notes: dict[str, None] = {}
    for trace in progress(traces, len(traces), "recomputing"):
        found = list(_compared(trace, model, tokenizer, layers, notes))
        report.traces += bool(found)
        if any(not deviation.ratio <= 1 for deviation in found):
            report.wrong.append(f"{trace.place}, question {trace.question_id}")
        for deviation in found:
            known = worst.get((deviation.kind, deviation.layer))
            if known is None or deviation.ratio > known.ratio:
                worst[deviation.kind, deviation.layer] = deviation
    report.deviations = sorted(
        worst.values(), key=lambda found: (_KINDS.index(found.kind), found.layer or 0)
    )
    report.notes = list(notes)
    return report


def _compared(
    trace: StoredTrace,
    model: Any,
    tokenizer: Any,
    layers: Sequence[int] | None,
    notes: dict[str, None],
) -> Iterator[Deviation]:
    """Yield the largest deviation of each kind and layer of one trace."""
    layers = _layers_of(trace, layers)
    if len(trace.tokens) < 2:
        notes["traces without token ids were not compared (imports may have none)"] = None
        return
    if trace.hidden is None:
        notes["states were not compared: they were reduced to components while packing"] = None
    raw = _lone_pass(trace, model, tokenizer, layers)
    states = np.stack(raw["hidden_states"])
    numbers = list(range(len(states)) if layers is None else layers)
    unit = _UNIT_ROUNDOFF.get(model.dtype, _UNIT_ROUNDOFF[torch.float32])
    if trace.hidden is not None:
        yield from _compared_states(trace, trace.hidden, states, numbers, unit)
    depth = getattr(model.config, "num_hidden_layers", numbers[-1] + 1)
    if trace.logprobs is not None:
        yield _compared_logprobs(trace, trace.logprobs, raw["token_logprobs"], depth, unit)
    maps = raw.get("attentions")
    if maps is None:
        return
    for place, layer in enumerate(numbers):
        allowed = _HALF_ROUNDING + _GROWTH * math.sqrt(layer + 1) * unit * SPREAD / 2
        own = maps[place].astype(np.float32)
        if trace.maps is not None:
            differs = np.abs(trace.maps[place].astype(np.float32) - own).max(axis=(0, 2))
            yield _largest(trace, "attention", layer, differs, np.full(len(differs), allowed))
        if trace.edges is not None:
            mean = own.mean(axis=0)
            yield _compared_edges(trace, "edges", (place, layer), [mean], trace.edges, allowed)
        if trace.heads is not None:
            yield _compared_edges(trace, "heads", (place, layer), list(own), trace.heads, allowed)


def _layers_of(trace: StoredTrace, asked: Sequence[int] | None) -> Sequence[int] | None:
    """Return the stored layers of the model; None: all."""
    if asked is None or trace.layers is None or tuple(asked) == trace.layers:
        return trace.layers if asked is None else asked
    raise ValueError(
        f"{trace.place}: holds {layers_in_words(trace.layers)}, not"
        f" {layers_in_words(asked)} as in --layers; omit the option"
    )


def _lone_pass(
    trace: StoredTrace, model: Any, tokenizer: Any, layers: Sequence[int] | None
) -> dict[str, Any]:
    """Return the raw trace of one forward pass over the stored tokens alone."""
    prompt = trace.prompt_length or 1
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and len(trace.tokens) > positions:
        raise ModelError(
            f"{trace.place}: {len(trace.tokens)} tokens, the model has {positions} positions; give"
            " the model that made the traces"
        )
    words = model.get_input_embeddings().num_embeddings
    if max(trace.tokens) >= words or min(trace.tokens) < 0:
        raise ModelError(
            f"{trace.place}: token {max(trace.tokens)}, the model has {words}; give the model"
            " that made the traces"
        )
    wanted = any(part is not None for part in (trace.maps, trace.edges, trace.heads))
    rules = AttentionRules(("full",) if wanted else ())
    item = Answered(
        Question(trace.question_id, "", ()),
        trace.tokens[:prompt],
        trace.tokens[prompt:],
        finished=True,
        empty=False,
    )
    (raw,) = StateReader(model, tokenizer, rules, layers).read([item])
    return raw


def _compared_states(
    trace: StoredTrace,
    stored: NDArray[Any],
    states: NDArray[Any],
    numbers: Sequence[int],
    unit: float,
) -> Iterator[Deviation]:
    if stored.shape[0] != states.shape[0] or stored.shape[2] != states.shape[2]:
        raise ModelError(
            f"{trace.place}: {stored.shape[0]} layers of {stored.shape[2]} features, the model has"
            f" {states.shape[0]} of {states.shape[2]}; give the model that made the traces, and"
            " the layers that were kept"
        )
    first = states.shape[1] - stored.shape[1]  # stored are those of the last tokens
    for layer, ours, again in zip(numbers, stored, states[:, first:], strict=True):
        known = ours.astype(np.float64)
        computed = again.astype(np.float64)
        finite = np.isfinite(known)
        # Stored infinities are not compared: float16 overflows before float32 does.
        differs = np.where(finite, np.abs(np.where(finite, known, 0) - computed), 0.0)
        scale = np.where(finite, np.abs(known), 0).max(axis=1)
        part = 2 * _HALF_ROUNDING + _GROWTH * math.sqrt(layer + 1) * unit
        allowed = part * scale + _HALF_STEP
        yield _largest(trace, "states", layer, differs.max(axis=1), allowed, first)


def _compared_logprobs(
    trace: StoredTrace,
    stored: NDArray[np.float32],
    again: NDArray[np.float32],
    depth: int,
    unit: float,
) -> Deviation:
    known, computed = stored.astype(np.float64), again.astype(np.float64)
    both = np.isneginf(known) & np.isneginf(computed)
    differs = np.where(both, 0.0, np.abs(np.where(both, 0, known) - np.where(both, 0, computed)))
    scale = np.maximum(SPREAD, np.where(np.isfinite(known), np.abs(known), 0))
    allowed = _GROWTH * math.sqrt(depth) * unit * scale
    return _largest(trace, "logprobs", None, differs, allowed, trace.prompt_length or 0)


def _compared_edges(
    trace: StoredTrace,
    kind: str,
    of: tuple[int, int],
    maps: list[NDArray[Any]],
    edges: EdgeLists,
    allowed: float,
) -> Deviation:
    """Return the largest deviation of a layer's edges.

    That is the deviation of a weight, or the weight by which a missing edge exceeds the limit of
    its list. ``of`` is the layer's place in the trace and its number in the model. ``maps`` are
    recomputed, one for each list of the layer.
    """
    place, layer = of
    tokens = len(trace.tokens)
    below = np.tril(np.ones((tokens, tokens), bool), -1)
    differs = np.zeros(tokens)
    spans = list(pairwise(edges.pointer.tolist()))[place * len(maps) : (place + 1) * len(maps)]
    for own, (first, last) in zip(maps, spans, strict=True):
        source, target = edges.index[:, first:last].astype(np.int64)
        weight = edges.weight[first:last].astype(np.float32)
        np.maximum.at(differs, target, np.abs(weight - own[target, source]))
        left = below.copy()
        left[target, source] = False
        limit = _limits(trace, kind, target, weight, tokens)
        if limit is not None:
            over = np.where(left, own - limit[:, None], 0.0)
            np.maximum(differs, over.max(axis=1), out=differs)
    return _largest(trace, kind, layer, differs, np.full(tokens, allowed))


def _limits(
    trace: StoredTrace,
    kind: str,
    target: NDArray[np.int64],
    weight: NDArray[np.float32],
    tokens: int,
) -> NDArray[np.float32] | None:
    """Return float32 ``[T]``, the greatest weight of a missing edge; None: unknown."""
    if kind == "heads":
        threshold = trace.head_threshold
        return None if threshold is None else np.full(tokens, threshold, np.float32)
    if trace.edge_rule is None:
        return None
    rule = EdgeRule.parse(trace.edge_rule)
    if rule.kind == "threshold":
        return np.full(tokens, rule.value, np.float32)
    least = np.full(tokens, np.inf, np.float32)
    np.minimum.at(least, target, weight)
    return least


def _largest(
    trace: StoredTrace,
    kind: str,
    layer: int | None,
    differs: NDArray[Any],
    allowed: NDArray[Any],
    first_token: int = 0,
) -> Deviation:
    """Return the deviation that is largest relative to its bound; NaN counts as infinite."""
    differs = np.where(np.isnan(differs), np.inf, differs)
    worst = int(np.argmax(differs / allowed))
    return Deviation(
        kind=kind,
        layer=layer,
        deviation=float(differs[worst]),
        allowed=float(allowed[worst]),
        place=trace.place,
        question_id=trace.question_id,
        token=first_token + worst,
    )
