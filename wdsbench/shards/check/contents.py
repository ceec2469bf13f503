"""The contents of one sample's members, which are in memory, whatever their hashes say.

Every array must have the dtype and shape that the table of member kinds gives for this sample, no
NaN, edges j < i < T, and a ``meta.json`` that agrees with the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.shards.check.arrays import (
    BLOCK_ELEMENTS,
    HALF_INFINITY,
    CheckedArray,
    ContentError,
    LayerStats,
    check_scales,
    check_states,
    magnitudes,
    parsed,
)
from wdsbench.shards.format.kinds import (
    HIDDEN,
    HIDDEN_SCALE,
    JSON,
    KINDS,
    META,
    SKETCH_VALUES,
    MemberKind,
    Sizes,
)
from wdsbench.shards.read.sample import StoredSample

_LOOKBACK: Final = SKETCH_VALUES.index("lookback")
#: Log-softmax in low precision ends a little above 0.
_LOGPROB_MAX: Final = 1e-2


def check_contents(
    sample: StoredSample, members: Mapping[str, NDArray[np.uint8]], damaged: set[str]
) -> tuple[list[ContentError], LayerStats]:
    """Return the problems of a sample's members, and the statistics of its states.

    ``members`` are bytes by name (without the key); ``damaged`` ones, present or missing, are not
    checked.
    """
    stats = LayerStats.zeros(sample.sizes.layers)
    problems: list[ContentError] = []
    for kind in KINDS.values():
        try:
            problems += _kind_problems(kind, sample, members, damaged, stats)
        except ContentError as error:
            problems.append(error)
    return problems, stats


def _kind_problems(
    kind: MemberKind,
    sample: StoredSample,
    members: Mapping[str, NDArray[np.uint8]],
    damaged: set[str],
    stats: LayerStats,
) -> list[ContentError]:
    present = [spec.name for spec in kind.members if spec.name in members]
    missing = [name for name in kind.required if name not in members]
    # A table that was made from the shards proves nothing about meta.json.
    has_table = sample.index.has_hashes
    if not damaged.isdisjoint(kind.required):
        return []
    if missing and kind.name in (sample.index.tensor.name, "meta"):
        if kind.name == "meta" and not has_table:
            return []
        detail = f"there is no {kind.main}; every sample has one"
        raise ContentError("member", kind.main, None, detail)
    if missing and present:
        detail = f"is stored without {', '.join(missing)}; they come together"
        raise ContentError("member", present[0], None, detail)
    if missing:
        return []
    if kind.name == "meta":
        meta = _parsed_meta(members[META])
        details = _disagreements(meta, sample) if has_table else ()
        return [ContentError("meta", META, 0, detail) for detail in details]
    if kind.main_spec.dtypes == (JSON,):
        return []
    arrays = {
        name: parsed(sample, name, members[name])
        for name in present
        if name not in damaged and name != HIDDEN_SCALE
    }
    if kind.name == "hidden":
        check_states(arrays[HIDDEN], sample.sizes, stats)
        if HIDDEN_SCALE in members and HIDDEN_SCALE not in damaged:
            check_scales(parsed(sample, HIDDEN_SCALE, members[HIDDEN_SCALE]), stats)
    elif kind.name in _VALUE_CHECKS:
        _VALUE_CHECKS[kind.name](list(arrays.values()), sample.sizes, kind.name)
    return []


def _check_edges(arrays: Sequence[CheckedArray], sizes: Sizes, kind: str) -> None:
    index, pointer, weight = (array.values for array in arrays)
    heads = sizes.heads if kind == "heads" else 0
    try:
        _core.check_edge_lists(
            index, weight, pointer, tokens=sizes.tokens, layers=sizes.layers, heads=heads
        )
    except _core.FormatError as error:
        name = f"{error.member}.npy"
        if error.kind != "value":
            raise ContentError("npy", name, 0, error.detail) from error
        payload = next(array.payload_bytes for array in arrays if array.name == name)
        raise ContentError("value", name, payload + error.offset_bytes, error.detail) from error


def _check_sketch(arrays: Sequence[CheckedArray], *_: object) -> None:
    (sketch,) = arrays
    values = sketch.values
    bad = magnitudes(values) >= HALF_INFINITY
    # Lookback is NaN outside the answer and where the prompt's length is not known.
    bad[..., _LOOKBACK] = np.isinf(values[..., _LOOKBACK])
    if bad.any():
        place = int(bad.argmax())
        layer, head, token, number = (int(i) for i in np.unravel_index(place, values.shape))
        raise sketch.wrong(
            place,
            f"{SKETCH_VALUES[number]} of layer {layer}, head {head}, token {token} is"
            f" {values[layer, head, token, number]}, expected a finite number",
        )


def _check_image(arrays: Sequence[CheckedArray], *_: object) -> None:
    image, ranges = arrays
    finite = np.isfinite(ranges.values)
    bad = ~(finite & (ranges.values[:, :1] <= ranges.values[:, 1:]))
    if bad.any():
        place = int(bad.argmax())
        detail = f"the range of channel {place // 2} is {ranges.values[place // 2].tolist()}"
        raise ranges.wrong(place, f"{detail}, expected finite numbers, low <= high")
    for channel, (pixels, (low, high)) in enumerate(zip(image.values, ranges.values, strict=True)):
        outside = ~((pixels >= low) & (pixels <= high))
        if outside.any():
            place = int(outside.argmax())
            detail = f"pixel {place} of channel {channel} is {pixels.reshape(-1)[place]}"
            raise image.wrong(
                channel * pixels.size + place, f"{detail}, outside its range [{low:g}, {high:g}]"
            )


def _check_maps(arrays: Sequence[CheckedArray], *_: object) -> None:
    (maps,) = arrays
    flat = maps.values.reshape(-1)
    for first in range(0, flat.size, BLOCK_ELEMENTS):
        bits = magnitudes(flat[first : first + BLOCK_ELEMENTS])
        if bits.max() >= HALF_INFINITY:
            place = first + int((bits >= HALF_INFINITY).argmax())
            detail = f"attention weight {place} is {flat[place]}, expected a finite number"
            raise maps.wrong(place, detail)


def _parsed_meta(data: NDArray[np.uint8]) -> dict[str, Any]:
    try:
        meta = json.loads(data.tobytes())
    except ValueError as error:
        place = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise ContentError("meta", META, place, f"not JSON: {error}") from error
    if not isinstance(meta, dict):
        detail = f"a JSON {type(meta).__name__}, expected an object"
        raise ContentError("meta", META, 0, detail)
    return meta


def _disagreements(meta: dict[str, Any], sample: StoredSample) -> Iterator[str]:
    row, layers = sample.index.sample_row(sample.row), sample.index.model_layers
    numbers = None if layers is None else list(layers)
    if meta.get("layers") != numbers:
        yield f"layers is {meta.get('layers')!r}, the index says {numbers!r}"
    prompt = None if row.prompt_length < 0 else row.prompt_length
    for name, table in (
        ("question_id", row.question_id),
        ("trace", row.trace),
        ("prompt_length", prompt),
    ):
        if meta.get(name) != table:
            yield f"{name} is {meta.get(name)!r}, the table says {table!r}"
    if sample.index.tensor.name == "image":
        return
    names = ("tokens", "token_texts", "token_logprobs")
    tokens, texts, logprobs = (meta.get(name) for name in names)
    if _length(tokens) not in (0, row.tokens):
        yield f"tokens: {_length(tokens)}, the table says {row.tokens}"
    if _length(texts) not in (0, row.tokens):
        yield f"token_texts: {_length(texts)}, expected {row.tokens} or none"
    if logprobs is None:
        return
    if prompt is None or _length(logprobs) != row.tokens - prompt:
        yield f"token_logprobs: {_length(logprobs)}, expected one for each token of the answer"
    elif not all(_is_logprob(value) for value in logprobs):
        yield "token_logprobs holds a value that is not the logarithm of a probability"


def _length(value: object) -> int | str:
    return len(value) if isinstance(value, list) else type(value).__name__


def _is_logprob(value: object) -> bool:
    if value is None:  # minus infinity, which JSON does not have
        return True
    return isinstance(value, int | float) and value <= _LOGPROB_MAX


#: Checks of values, by kind; the arrays come in the order of the kind's members.
_VALUE_CHECKS: Final[dict[str, Callable[[Sequence[CheckedArray], Sizes, str], None]]] = {
    "edges": _check_edges,
    "heads": _check_edges,
    "image": _check_image,
    "sketch": _check_sketch,
    "full": _check_maps,
}
