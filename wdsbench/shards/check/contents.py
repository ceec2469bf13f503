"""What the members of one sample must hold, whatever their hashes say.

A hash proves that a member is what was written; this proves that what was written is a trace: every
array of the dtype and shape that the index promises, no NaN, edges j < i < T, and a ``meta.json``
that agrees with the table. Everything works on bytes that lie in memory already.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.shards.format.index import DatasetIndex
from wdsbench.shards.format.kinds import (
    ATTENTION,
    EDGES_INDEX,
    EDGES_POINTER,
    EDGES_WEIGHT,
    HEADS_INDEX,
    HEADS_POINTER,
    HEADS_WEIGHT,
    HIDDEN,
    HIDDEN_SCALE,
    META,
    SKETCH,
    SKETCH_VALUES,
)

#: Members that mean something only together: (name, index, pointer, weight).
EDGE_GROUPS: Final = (
    ("edges", EDGES_INDEX, EDGES_POINTER, EDGES_WEIGHT),
    ("heads", HEADS_INDEX, HEADS_POINTER, HEADS_WEIGHT),
)

_LOOKBACK: Final = SKETCH_VALUES.index("lookback")

#: All exponent bits of 16-bit floats: this magnitude is infinity, more is NaN.
_INFINITY_BITS: Final = {"<f2": 0x7C00, "bf16": 0x7F80}

#: Elements looked at together: block and temporary stay in a core's L2 cache.
_BLOCK_ELEMENTS: Final = 64 * 1024

#: Log-softmax in low precision ends a little above 0.
_LOGPROB_MAX: Final = 1e-2


@dataclass(frozen=True)
class Fault:
    """What is wrong with a member.

    Attributes:
        kind: ``"npy"`` (header, dtype, shape), ``"value"``, ``"meta"`` or ``"member"`` (missing).
        member: Its name without the key; "" for the sample as a whole.
        offset_bytes: Place in the member's data; None where there is none.
        detail: What was seen and what is allowed.
    """

    kind: str
    member: str
    offset_bytes: int | None
    detail: str


@dataclass(frozen=True)
class Form:
    """What all samples of a data set have in common.

    Attributes:
        layers: L.
        features: D.
        hidden: Stored dtype of the states: ``"<f2"``, ``"bf16"``, ``"<f4"``, ``"<f8"``.
        heads: H where anything of single heads is stored, else 0.
        full: H of stored maps, else 0.
        numbers: Which of the model's layers they are; None: all of them.
    """

    layers: int
    features: int
    hidden: str
    heads: int
    full: int
    numbers: tuple[int, ...] | None = None

    @classmethod
    def of(cls, index: DatasetIndex) -> Form:
        """Return the form that an index promises."""
        full = index.file.fields.get("full")
        return cls(
            layers=index.num_layers,
            features=index.num_features,
            hidden=index.file.fields["hidden"].dtype,
            heads=index.num_heads,
            full=0 if full is None else int(full.shape[1] or 0),
            numbers=index.model_layers,
        )


@dataclass(frozen=True)
class Facts:
    """What the table says of one sample.

    Attributes:
        question_id, trace, tokens, state_tokens, prompt_length: As in the table.
        told: Whether the table was written with the shards; one made from the shards proves
            nothing about ``meta.json``.
    """

    question_id: str
    trace: int
    tokens: int
    state_tokens: int
    prompt_length: int
    told: bool


@dataclass
class LayersSeen:
    """What was seen of the states, layer by layer.

    Attributes:
        max_abs: float64 ``[L]``: the largest finite magnitude, scales applied.
        infinities: int64 ``[L]``.
        scaled: int64 ``[L]``: samples whose scale is not 1.
    """

    max_abs: NDArray[np.float64]
    infinities: NDArray[np.int64]
    scaled: NDArray[np.int64]

    @classmethod
    def nothing(cls, layers: int) -> LayersSeen:
        """Return what is known before the first sample."""
        return cls(np.zeros(layers), np.zeros(layers, np.int64), np.zeros(layers, np.int64))

    def add(self, other: LayersSeen) -> None:
        """Take in what was seen of other samples."""
        np.maximum(self.max_abs, other.max_abs, out=self.max_abs)
        self.infinities += other.infinities
        self.scaled += other.scaled


class _Wrong(Exception):
    """A fault, on its way out of a check."""

    def __init__(self, kind: str, member: str, offset_bytes: int, detail: str) -> None:
        super().__init__(detail)
        self.fault = Fault(kind, member, offset_bytes, detail)


@dataclass(frozen=True)
class _Array:
    """An npy member.

    Attributes:
        values: In its stored dtype, uncopied.
        payload_bytes: Where they begin in the member.
    """

    name: str
    values: NDArray[Any]
    payload_bytes: int

    def wrong(self, element: int, detail: str) -> _Wrong:
        place = self.payload_bytes + element * self.values.dtype.itemsize
        return _Wrong("value", self.name, place, detail)

    def misshapen(self, wanted: str) -> _Wrong:
        seen = f"{self.values.shape} of {self.values.dtype.str}"
        return _Wrong("npy", self.name, 0, f"shape {seen}, expected {wanted}")


def header_fault(member: str, data: Any, size: int) -> Fault | None:
    """Return what is wrong with the npy header at the start of a member of ``size`` bytes."""
    try:
        _core.parse_npy_header(data, size)
    except _core.FormatError as error:
        return Fault("npy", member, error.offset_bytes, error.detail)
    return None


def check_contents(
    form: Form, facts: Facts, members: Mapping[str, NDArray[np.uint8]], damaged: set[str]
) -> tuple[list[Fault], LayersSeen]:
    """Return what is wrong with a sample's members, and what its states are like.

    Args:
        form: Of the data set.
        facts: Of the sample.
        members: Name (without the key) to bytes.
        damaged: Those of them, or of the missing ones, that are known to be damaged: nothing more
            is said of them.
    """
    seen = LayersSeen.nothing(form.layers)
    faults: list[Fault] = []
    checks: list[Callable[[], None]] = []
    if HIDDEN in members and HIDDEN not in damaged:
        whole_scale = HIDDEN_SCALE not in damaged
        scale = members.get(HIDDEN_SCALE) if whole_scale else None
        checks.append(lambda: _check_hidden(form, facts, members[HIDDEN], scale, seen))
    elif HIDDEN not in damaged:
        faults.append(Fault("member", HIDDEN, None, f"there is no {HIDDEN}; every sample has one"))
    for kind, *names in EDGE_GROUPS:
        there = [name for name in names if name in members]
        if not there or not damaged.isdisjoint(names):
            continue
        if len(there) < len(names):
            missing = ", ".join(name for name in names if name not in members)
            faults.append(
                Fault("member", there[0], None, f"stands without {missing}; they come together")
            )
            continue
        lists = form.layers * (1 if kind == "edges" else form.heads)
        checks.append(partial(_check_edges, members, names, lists, facts))
    if SKETCH in members and SKETCH not in damaged:
        checks.append(lambda: _check_sketch(form, facts, members[SKETCH]))
    if ATTENTION in members and ATTENTION not in damaged:
        checks.append(lambda: _check_attention(form, facts, members[ATTENTION]))
    for check in checks:
        try:
            check()
        except _Wrong as wrong:
            faults.append(wrong.fault)
    if META in members and META not in damaged:
        faults += _meta_faults(form, facts, members[META])
    elif META not in damaged and facts.told:
        faults.append(Fault("member", META, None, f"there is no {META}; every sample has one"))
    return faults, seen


def _parsed(name: str, data: NDArray[np.uint8]) -> _Array:
    fault = header_fault(name, data.data, data.size)
    if fault is not None:
        raise _Wrong(fault.kind, name, fault.offset_bytes or 0, fault.detail)
    descr, shape, payload = _core.parse_npy_header(data.data, data.size)
    return _Array(name, np.frombuffer(data, descr, offset=payload).reshape(shape), payload)


def _check_hidden(
    form: Form,
    facts: Facts,
    data: NDArray[np.uint8],
    scale_data: NDArray[np.uint8] | None,
    seen: LayersSeen,
) -> None:
    states = _parsed(HIDDEN, data)
    stored = "<u2" if form.hidden == "bf16" else form.hidden
    wanted = (form.layers, facts.state_tokens, form.features)
    if states.values.shape != wanted or states.values.dtype.str != stored:
        raise states.misshapen(f"{wanted} of {stored} as the index says")
    _look_at_states(states, form, facts, seen)
    if scale_data is None:
        return
    scale = _parsed(HIDDEN_SCALE, scale_data)
    factors = scale.values
    if factors.shape != (form.layers,) or factors.dtype.str != "<f4":
        raise scale.misshapen(f"({form.layers},) of <f4")
    # A power of two has the mantissa 0.5; NaN and infinity have not.
    bad = ~((np.frexp(factors)[0] == 0.5) & np.isfinite(factors))
    if bad.any():
        layer = int(bad.argmax())
        raise scale.wrong(
            layer, f"the scale of layer {layer} is {factors[layer]}, expected a power of two"
        )
    seen.max_abs *= factors
    seen.scaled += factors != 1


def _look_at_states(states: _Array, form: Form, facts: Facts, seen: LayersSeen) -> None:
    """Note maxima and infinities; refuse NaN."""
    layers = states.values.reshape(form.layers, -1)
    if layers.size <= _BLOCK_ELEMENTS:
        tops = _magnitudes(layers, form.hidden).max(axis=1, initial=0)
    else:
        tops = np.array([_largest(layer, form.hidden) for layer in layers])
    if form.hidden in _INFINITY_BITS:
        limit: float = _INFINITY_BITS[form.hidden]
        suspects = np.flatnonzero(tops >= limit)
    else:
        limit = math.inf
        suspects = np.flatnonzero(~np.isfinite(tops))
    for layer in suspects.tolist():
        magnitudes = _magnitudes(layers[layer], form.hidden)
        nan = ~(magnitudes <= limit)  # true of NaN itself
        if nan.any():
            place = int(nan.argmax())
            token = facts.tokens - facts.state_tokens + place // form.features
            raise states.wrong(
                layer * layers.shape[1] + place,
                f"NaN in layer {layer}, token {token}, feature"
                f" {place % form.features}; NaN is never packed: extract this trace again",
            )
        seen.infinities[layer] += int((magnitudes == limit).sum())
        tops[layer] = magnitudes[magnitudes < limit].max(initial=0)
    if form.hidden == "<f2":
        seen.max_abs[:] = tops.astype(np.uint16).view(np.float16)
    elif form.hidden == "bf16":
        seen.max_abs[:] = (tops.astype(np.uint32) << 16).view(np.float32)
    else:
        seen.max_abs[:] = tops


def _magnitudes(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return magnitudes; of 16-bit floats as integers, which are in the same order."""
    magnitudes: NDArray[Any] = (
        values.view(np.uint16) & np.uint16(0x7FFF) if dtype in _INFINITY_BITS else np.abs(values)
    )
    return magnitudes


def _largest(layer: NDArray[Any], dtype: str) -> Any:
    """Return the largest magnitude of one layer, NaN above all others; block by block."""
    tops = [
        _magnitudes(layer[first : first + _BLOCK_ELEMENTS], dtype).max()
        for first in range(0, layer.size, _BLOCK_ELEMENTS)
    ]
    return np.max(tops)


def _check_edges(
    members: Mapping[str, NDArray[np.uint8]], names: list[str], lists: int, facts: Facts
) -> None:
    """Check the edges of all lists: pointer ``[lists + 1]``, index ``[2, E]``, weight ``[E]``."""
    index, pointer, weight = (_parsed(name, members[name]) for name in names)
    starts = pointer.values
    if starts.shape != (lists + 1,) or starts.dtype.str != "<u4":
        raise pointer.misshapen(f"({lists + 1},) of <u4")
    falls = np.flatnonzero(starts[1:] < starts[:-1]) + 1
    if starts[0] != 0 or falls.size:
        place = 0 if starts[0] != 0 else int(falls[0])
        raise pointer.wrong(
            place, f"pointer {place} is {starts[place]}; pointers start at 0 and never fall"
        )
    edges = int(starts[-1])
    if weight.values.shape != (edges,) or weight.values.dtype.str != "<f2":
        raise weight.misshapen(f"({edges},) of <f2 as the pointer says")
    if index.values.shape != (2, edges) or index.values.dtype.kind != "u":
        raise index.misshapen(f"(2, {edges}) of an unsigned type as the pointer says")
    source, target = index.values
    bad = (source >= target) | (target >= facts.tokens)
    rule = f"an edge runs from a smaller to a larger index below {facts.tokens}"
    if not bad.any():
        bad[1:] = (target[1:] < target[:-1]) | (
            (target[1:] == target[:-1]) & (source[1:] <= source[:-1])
        )
        bad[starts[starts < edges]] = False  # the first edge of a list follows none
        rule = "edges of a list are ordered by target, then source, each once"
    if bad.any():
        edge = int(bad.argmax())
        raise index.wrong(edge, f"edge {edge} is {source[edge]} -> {target[edge]}; {rule}")
    _check_finite(weight, "weight")


def _check_sketch(form: Form, facts: Facts, data: NDArray[np.uint8]) -> None:
    sketch = _parsed(SKETCH, data)
    wanted = (form.layers, form.heads, facts.tokens, len(SKETCH_VALUES))
    if sketch.values.shape != wanted or sketch.values.dtype.str != "<f2":
        raise sketch.misshapen(f"{wanted} of <f2 as the index says")
    bad = (sketch.values.view(np.uint16) & np.uint16(0x7FFF)) >= _INFINITY_BITS["<f2"]
    # Lookback is NaN outside the answer and where the prompt's length is not known.
    bad[..., _LOOKBACK] = np.isinf(sketch.values[..., _LOOKBACK])
    if bad.any():
        place = int(bad.argmax())
        layer, head, token, number = (int(i) for i in np.unravel_index(place, wanted))
        raise sketch.wrong(
            place,
            f"{SKETCH_VALUES[number]} of layer {layer}, head {head}, token {token} is"
            f" {sketch.values[layer, head, token, number]}, expected a finite number",
        )


def _check_attention(form: Form, facts: Facts, data: NDArray[np.uint8]) -> None:
    maps = _parsed(ATTENTION, data)
    wanted = (form.layers, form.full, facts.tokens * (facts.tokens + 1) // 2)
    if maps.values.shape != wanted or maps.values.dtype.str != "<f2":
        raise maps.misshapen(f"{wanted} of <f2 as the index says")
    _check_finite(maps, "attention weight")


def _check_finite(array: _Array, what: str) -> None:
    flat = array.values.reshape(-1)
    for first in range(0, flat.size, _BLOCK_ELEMENTS):
        bits = flat[first : first + _BLOCK_ELEMENTS].view(np.uint16) & np.uint16(0x7FFF)
        if bits.max() >= _INFINITY_BITS["<f2"]:
            place = first + int((bits >= _INFINITY_BITS["<f2"]).argmax())
            raise array.wrong(place, f"{what} {place} is {flat[place]}, expected a finite number")


def _meta_faults(form: Form, facts: Facts, data: NDArray[np.uint8]) -> list[Fault]:
    try:
        meta = json.loads(data.tobytes())
    except ValueError as error:
        place = error.pos if isinstance(error, json.JSONDecodeError) else 0
        return [Fault("meta", META, place, f"not JSON: {error}")]
    if not isinstance(meta, dict):
        return [Fault("meta", META, 0, f"a JSON {type(meta).__name__}, expected an object")]
    if not facts.told:
        return []
    return [Fault("meta", META, 0, detail) for detail in _disagreements(meta, form, facts)]


def _disagreements(meta: dict[str, Any], form: Form, facts: Facts) -> Iterator[str]:
    """Yield where ``meta.json`` and the table, or the index, say different things."""
    numbers = None if form.numbers is None else list(form.numbers)
    if meta.get("layers") != numbers:
        yield f"layers is {meta.get('layers')!r}, the index says {numbers!r}"
    prompt = None if facts.prompt_length < 0 else facts.prompt_length
    for name, table in (
        ("question_id", facts.question_id),
        ("trace", facts.trace),
        ("prompt_length", prompt),
    ):
        if meta.get(name) != table:
            yield f"{name} is {meta.get(name)!r}, the table says {table!r}"
    tokens, texts, logprobs = (
        meta.get(name) for name in ("tokens", "token_texts", "token_logprobs")
    )
    if not isinstance(tokens, list) or len(tokens) not in (0, facts.tokens):
        seen = len(tokens) if isinstance(tokens, list) else type(tokens).__name__
        yield f"tokens: {seen}, the table says {facts.tokens}"
    if not isinstance(texts, list) or len(texts) not in (0, facts.tokens):
        seen = len(texts) if isinstance(texts, list) else type(texts).__name__
        yield f"token_texts: {seen}, expected {facts.tokens} or none"
    if logprobs is None:
        return
    if prompt is None or not isinstance(logprobs, list) or len(logprobs) != facts.tokens - prompt:
        seen = len(logprobs) if isinstance(logprobs, list) else type(logprobs).__name__
        yield f"token_logprobs: {seen}, expected one for each token of the answer"
    elif not all(_is_logprob(value) for value in logprobs):
        yield "token_logprobs holds what is no logarithm of a probability"


def _is_logprob(value: object) -> bool:
    if value is None:  # minus infinity, which JSON has not
        return True
    return isinstance(value, int | float) and value <= _LOGPROB_MAX
