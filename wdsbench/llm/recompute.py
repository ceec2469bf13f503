"""Comparison of stored traces with the model that made them.

Each selected trace is run again in one forward pass over its stored tokens, without batch, padding
or cache, and compared with the stored data. This finds errors of batching and padding, wrong
layers, tokens that do not belong to the states, another model or another precision.

**Bounds.** Two errors are allowed, both relative to the largest magnitude ``s`` of the token's
state in its layer (large models have a few tokens with huge states):

- Rounding to float16, stored and recomputed: half of the last of 11 binary digits each,
  ``2 * 2^-11 * s``.
- Rounding in the model by ``u``: 2^-8 in bfloat16, 2^-11 in float16, and in float32 2^-24 times 8
  for sums of thousands of terms. A batch rounds in another order: about ten independent roundings
  per layer in each of two passes, which add as square roots; the largest of thousands is four
  deviations out; their scale is at most a third of ``s``. ``sqrt(10) * sqrt(2) * 4 / 3 < 6``, so
  the bound after layer l is ``6 * sqrt(l + 1) * u * s``.

Logits and attention scores are projections of the same states and spread over some units
(``SPREAD``). Log-probabilities differ by at most ``6 * sqrt(L) * u`` of that or of themselves,
whichever is larger. A probability p differs by p (1 - p) times twice that, at most half of it, and
by rounding to float16, 2^-12 in each pass.

Measured on the demo's model (6 layers, 60 traces): a bfloat16 or float16 pass against float32
reaches 0.3 to 0.54 of the bound for states, 0.43 for attention and 0.1 for log-probabilities; two
float32 passes reach 0.1 to 0.5. A fault is of the order of the states, 1 in these units. float32
allows 0.001 in every layer, bfloat16 0.02 in the first and 0.13 in the 32nd, so small faults of
late layers are found in float32 only.
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
from wdsbench.llm.attention import RefusedTraceError
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
    """Result of recomputing."""

    traces: int = 0  # number of traces compared
    wrong: list[str] = field(default_factory=list)  # place of each trace that exceeds a bound
    deviations: list[Deviation] = field(default_factory=list)  # the largest of each kind and layer
    notes: list[str] = field(default_factory=list)  # data that could not be compared, and why

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

    ``model`` must have the precision with which it made the traces. ``layers`` are the stored ones,
    from 0; None: those that the traces name, or all.

    Raises:
        ModelError: The model has other layers or features than the traces, or fewer tokens.
        ValueError: The traces name other layers than ``layers``.
    """
    report = RecomputeReport()
    worst: dict[tuple[str, int | None], Deviation] = {}
    notes: dict[str, None] = {}
    for trace in progress(traces, len(traces), "recomputing"):
        kept = _layers_of(trace, layers)
        if len(trace.tokens) < 2:
            notes["traces without token ids were not compared (imports may have none)"] = None
            continue
        if trace.hidden is None:
            notes["states were not compared: they were reduced to components while packing"] = None
        found = list(_Comparison(trace, model, tokenizer, kept).deviations())
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


class _Comparison:
    """Comparison of one stored trace with the raw trace of a plain pass over its tokens."""

    def __init__(
        self, trace: StoredTrace, model: Any, tokenizer: Any, layers: Sequence[int] | None
    ) -> None:
        self.trace = trace
        self.raw = _plain_pass(trace, model, tokenizer, layers)
        # Number of each kept layer in the model.
        self.layers = list(range(len(self.raw["hidden_states"])) if layers is None else layers)
        self.depth = getattr(model.config, "num_hidden_layers", self.layers[-1] + 1)
        self.unit = _UNIT_ROUNDOFF.get(model.dtype, _UNIT_ROUNDOFF[torch.float32])

    def deviations(self) -> Iterator[Deviation]:
        """Yield the largest deviation of each kind and layer."""
        trace = self.trace
        if trace.hidden is not None:
            yield from self._states(trace.hidden)
        if trace.logprobs is not None:
            yield self._logprobs(trace.logprobs)
        for place, maps in enumerate(self.raw.get("attentions", ())):
            computed = maps.astype(np.float32)
            if trace.maps is not None:
                stored = trace.maps[place].astype(np.float32)
                differs = np.abs(stored - computed).max(axis=(0, 2))
                yield self._attention("attention", place, differs)
            if trace.edges is not None:
                differs = self._edges("edges", place, [computed.mean(axis=0)], trace.edges)
                yield self._attention("edges", place, differs)
            if trace.heads is not None:
                differs = self._edges("heads", place, list(computed), trace.heads)
                yield self._attention("heads", place, differs)

    def _states(self, all_stored: NDArray[Any]) -> Iterator[Deviation]:
        all_computed = np.stack(self.raw["hidden_states"])
        if all_stored.shape[::2] != all_computed.shape[::2]:
            raise ModelError(
                f"{self.trace.place}: {all_stored.shape[0]} layers of {all_stored.shape[2]}"
                f" features, the model has {all_computed.shape[0]} of {all_computed.shape[2]}; give"
                " the model that made the traces, and the layers that were kept"
            )
        first = all_computed.shape[1] - all_stored.shape[1]  # stored are those of the last tokens
        for layer, own, computed in zip(
            self.layers, all_stored, all_computed[:, first:], strict=True
        ):
            stored = own.astype(np.float64)
            finite = np.isfinite(stored)
            # Stored infinities are not compared: float16 overflows before float32 does.
            differs = np.where(finite, np.abs(np.where(finite, stored, 0) - computed), 0.0)
            scale = np.where(finite, np.abs(stored), 0).max(axis=1)
            part = 2 * _HALF_ROUNDING + _GROWTH * math.sqrt(layer + 1) * self.unit
            allowed = part * scale + _HALF_STEP
            yield self._largest("states", layer, differs.max(axis=1), allowed, first)

    def _logprobs(self, all_stored: NDArray[np.float32]) -> Deviation:
        stored = all_stored.astype(np.float64)
        computed = self.raw["token_logprobs"].astype(np.float64)
        both = np.isneginf(stored) & np.isneginf(computed)
        differs = np.abs(np.where(both, 0, stored) - np.where(both, 0, computed))
        scale = np.maximum(SPREAD, np.where(np.isfinite(stored), np.abs(stored), 0))
        allowed = _GROWTH * math.sqrt(self.depth) * self.unit * scale
        first = self.trace.prompt_length or 0
        return self._largest("logprobs", None, differs, allowed, first)

    def _attention(self, kind: str, place: int, differs: NDArray[Any]) -> Deviation:
        layer = self.layers[place]
        allowed = _HALF_ROUNDING + _GROWTH * math.sqrt(layer + 1) * self.unit * SPREAD / 2
        return self._largest(kind, layer, differs, np.full(len(differs), allowed))

    def _edges(
        self, kind: str, place: int, maps: list[NDArray[Any]], edges: EdgeLists
    ) -> NDArray[Any]:
        """Return the largest deviation of the edges of the layer at ``place``, for each token.

        That is the deviation of a weight, or the weight by which a missing edge exceeds the limit
        of its list. ``maps`` are recomputed, one for each list of the layer.
        """
        tokens = len(self.trace.tokens)
        below = np.tril(np.ones((tokens, tokens), bool), -1)
        differs = np.zeros(tokens)
        spans = list(pairwise(edges.pointer.tolist()))[place * len(maps) : (place + 1) * len(maps)]
        for computed, (first, last) in zip(maps, spans, strict=True):
            source, target = edges.index[:, first:last].astype(np.int64)
            weight = edges.weight[first:last].astype(np.float32)
            np.maximum.at(differs, target, np.abs(weight - computed[target, source]))
            left = below.copy()
            left[target, source] = False
            limit = self._limits(kind, target, weight)
            if limit is not None:
                over = np.where(left, computed - limit[:, None], 0.0)
                np.maximum(differs, over.max(axis=1), out=differs)
        return differs

    def _limits(
        self, kind: str, target: NDArray[np.int64], weight: NDArray[np.float32]
    ) -> NDArray[np.float32] | None:
        """Return float32 ``[T]``, the greatest weight of a missing edge; None: unknown."""
        trace, tokens = self.trace, len(self.trace.tokens)
        rule = None if trace.edge_rule is None else EdgeRule.parse(trace.edge_rule)
        if kind == "edges" and rule is not None and rule.kind == "top":
            least = np.full(tokens, np.inf, np.float32)
            np.minimum.at(least, target, weight)
            return least
        edge_threshold = None if rule is None else rule.value
        threshold = trace.head_threshold if kind == "heads" else edge_threshold
        return None if threshold is None else np.full(tokens, threshold, np.float32)

    def _largest(
        self,
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
            place=self.trace.place,
            question_id=self.trace.question_id,
            token=first_token + worst,
        )


def _layers_of(trace: StoredTrace, asked: Sequence[int] | None) -> Sequence[int] | None:
    """Return the stored layers of the model; None: all."""
    if asked is None or trace.layers is None or tuple(asked) == trace.layers:
        return trace.layers if asked is None else asked
    raise ValueError(
        f"{trace.place}: holds {layers_in_words(trace.layers)}, not"
        f" {layers_in_words(asked)} as in --layers; omit the option"
    )


def _plain_pass(
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
    (raw,) = StateReader(model, tokenizer, rules, layers).outcomes([item])
    if isinstance(raw, RefusedTraceError):
        raise raw
    return raw
