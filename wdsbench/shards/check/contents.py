"""The contents of one sample's members, whatever their hashes say.

A hash proves that a member is what was written. These checks prove that it is a trace: every array
has the dtype and shape that the table of member kinds gives for this sample, no NaN, edges
j < i < T, and a ``meta.json`` that agrees with the table. All bytes are in memory already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.shards.check.arrays import CheckedArray, ContentError, MemberProblem, parsed
from wdsbench.shards.check.expected import ExpectedSample
from wdsbench.shards.check.meta import meta_problems
from wdsbench.shards.check.states import (
    BLOCK_ELEMENTS,
    HALF_INFINITY,
    LayerStats,
    check_scales,
    check_states,
    magnitudes,
)
from wdsbench.shards.format.kinds import (
    HIDDEN,
    HIDDEN_SCALE,
    JSON,
    KINDS,
    META,
    SKETCH_VALUES,
    MemberKind,
)

_LOOKBACK: Final = SKETCH_VALUES.index("lookback")
#: Kinds that every sample of ours has.
_EVERY_SAMPLE: Final = ("hidden", "meta")


def check_contents(
    expected: ExpectedSample, members: Mapping[str, NDArray[np.uint8]], damaged: set[str]
) -> tuple[list[MemberProblem], LayerStats]:
    """Return what is wrong with a sample's members, and the statistics of its states.

    Args:
        expected: What index and table promise.
        members: Name (without the key) to bytes.
        damaged: Members, present or missing, that are known to be damaged; they are not checked.
    """
    stats = LayerStats.zeros(expected.sizes.layers)
    problems: list[MemberProblem] = []
    for kind in KINDS.values():
        problems += _kind_problems(kind, expected, members, damaged, stats)
    return problems, stats


def _kind_problems(
    kind: MemberKind,
    expected: ExpectedSample,
    members: Mapping[str, NDArray[np.uint8]],
    damaged: set[str],
    stats: LayerStats,
) -> list[MemberProblem]:
    present = [spec.name for spec in kind.members if spec.name in members]
    missing = [name for name in kind.required if name not in members]
    if not damaged.isdisjoint(kind.required):
        return []
    if missing and kind.name in _EVERY_SAMPLE:
        if kind.name == "meta" and not expected.has_table:
            return []
        detail = f"there is no {kind.main}; every sample has one"
        return [MemberProblem("member", kind.main, None, detail)]
    if missing and present:
        detail = f"is stored without {', '.join(missing)}; they come together"
        return [MemberProblem("member", present[0], None, detail)]
    if missing:
        return []
    if kind.main_spec.dtypes == (JSON,):
        return meta_problems(expected, members[META]) if kind.name == "meta" else []
    try:
        arrays = {
            name: parsed(expected.specs[name], members[name], expected.sizes)
            for name in present
            if name not in damaged and name != HIDDEN_SCALE
        }
        if kind.name == "hidden":
            check_states(arrays[HIDDEN], expected, stats)
            if HIDDEN_SCALE in members and HIDDEN_SCALE not in damaged:
                spec = expected.specs[HIDDEN_SCALE]
                check_scales(parsed(spec, members[HIDDEN_SCALE], expected.sizes), stats)
        elif kind.name in _VALUE_CHECKS:
            _VALUE_CHECKS[kind.name](list(arrays.values()), expected)
    except ContentError as error:
        return [error.problem]
    return []


def _check_edges(arrays: Sequence[CheckedArray], expected: ExpectedSample, heads: int = 0) -> None:
    """Check edges: index ``[2, E]``, pointer ``[lists + 1]``, weight ``[E]``."""
    index, pointer, weight = (array.values for array in arrays)
    tokens, layers = expected.sizes.tokens, expected.sizes.layers
    try:
        _core.check_edge_lists(index, weight, pointer, tokens=tokens, layers=layers, heads=heads)
    except _core.FormatError as error:
        name = f"{error.member}.npy"
        if error.kind != "value":
            raise ContentError("npy", name, 0, error.detail) from error
        payload = next(array.payload_bytes for array in arrays if array.name == name)
        raise ContentError("value", name, payload + error.offset_bytes, error.detail) from error


def _check_heads(arrays: Sequence[CheckedArray], expected: ExpectedSample) -> None:
    _check_edges(arrays, expected, expected.sizes.heads)


def _check_sketch(arrays: Sequence[CheckedArray], _: ExpectedSample) -> None:
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


def _check_maps(arrays: Sequence[CheckedArray], _: ExpectedSample) -> None:
    _check_finite(arrays[0], "attention weight")


def _check_finite(array: CheckedArray, what: str) -> None:
    flat = array.values.reshape(-1)
    for first in range(0, flat.size, BLOCK_ELEMENTS):
        bits = magnitudes(flat[first : first + BLOCK_ELEMENTS])
        if bits.max() >= HALF_INFINITY:
            place = first + int((bits >= HALF_INFINITY).argmax())
            raise array.wrong(place, f"{what} {place} is {flat[place]}, expected a finite number")


#: Checks of values, by kind; the arrays come in the order of the kind's members.
_VALUE_CHECKS: Final[dict[str, Callable[[Sequence[CheckedArray], ExpectedSample], None]]] = {
    "edges": _check_edges,
    "heads": _check_heads,
    "sketch": _check_sketch,
    "full": _check_maps,
}
