"""Arrays and layers of a raw trace; ``check`` adds the place to their ``ValueError``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import first_line
from wdsbench.traces.arrays import as_array, shown

_FLOATS: Final = (np.float16, np.float32, np.float64)
#: Error for a sequence of generation steps instead of layers.
_STEPS: Final = (
    "{0} holds one tuple per generation step, as generate() returns them; run one forward pass over"
    " prompt and answer and save its {0}."
)


def stacked_layers(name: str, value: object, axes: int) -> tuple[NDArray[Any], bool]:
    """Return layers as one array ``[L, ...]``, and whether a batch axis of 1 was dropped.

    The array is C-contiguous and in native byte order. ``value`` holds L arrays of ``axes`` axes,
    or is one array of all layers; layers of ``hidden_states`` may also be vectors.

    Raises:
        ValueError: The layers are not float arrays of one shape.
    """
    if isinstance(value, list | tuple):
        stacked = _stack(name, value, axes)
    else:
        stacked = whole_array(name, value)
        check_float(name, stacked)
    wanted = axes + 1
    batch_axis = stacked.ndim == wanted + 1 and 1 in stacked.shape[:2]
    if batch_axis:
        stacked = stacked[:, 0] if stacked.shape[1] == 1 else stacked[0]
    vectors = name == "hidden_states" and stacked.ndim == 2
    if (stacked.ndim != wanted and not vectors) or 0 in stacked.shape:
        form = "[layers, tokens, features]" if axes == 2 else "[layers, heads, tokens, tokens]"
        raise ValueError(f"{name} has shape {stacked.shape}; expected {form}, each at least 1.")
    native = np.asarray(stacked, dtype=stacked.dtype.newbyteorder("="), order="C")
    return native, batch_axis


def whole_array(name: str, value: object) -> NDArray[Any]:
    """Return a value as one array; raise ValueError if it is not an array."""
    if value is None:
        raise ValueError(f"{name} is None; save it, or leave the key out if it is optional.")
    try:
        return as_array(value)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read as one array: {first_line(error)}.") from error


def check_float(name: str, values: NDArray[Any]) -> None:
    """Raise ValueError unless the values are float16, float32 or float64."""
    if values.dtype.newbyteorder("=") not in _FLOATS:
        raise ValueError(
            f"{name} has dtype {values.dtype}; expected float16, float32, float64 (and "
            "bfloat16 as a torch tensor)."
        )


def tokens_of_states(
    states_of: object, states: int, token_count: int, prompt_length: int | None
) -> str:
    """Return the tokens that states belong to: ``all``, ``answer`` or ``last``.

    Raises ValueError if the raw trace's ``states_of`` does not fit the number of states, or if it
    is None and the states belong neither to all tokens nor to one.
    """
    answer = None if prompt_length is None else token_count - prompt_length
    if states_of is not None:
        counts = {"all": token_count, "answer": answer, "last": 1}
        if not isinstance(states_of, str) or states_of not in counts:
            raise ValueError(f"states_of is {shown(states_of)}; expected {', '.join(counts)}.")
        if states != counts[states_of]:
            raise ValueError(
                f"hidden_states has {states} of {token_count} tokens with states_of {states_of!r};"
                f" expected {counts[states_of] or 'those of the answer, with its prompt_length'}."
            )
    if states == token_count:
        return "all"
    if states_of == "answer":
        return "answer"
    if states == 1:
        return "last"
    hint = (
        ". A common cause: generate() returns no state for the token it produced last; run one"
        " forward pass over prompt and answer and save that"
    )
    if states == answer:
        hint = (
            f"; or {states} with states_of 'answer', if they are the answer's states of one forward"
            " pass over prompt and answer (those of generate() belong to the preceding tokens)"
        )
    raise ValueError(
        f"hidden_states has {states} of {token_count} tokens; expected {token_count}, or 1 (the"
        f" last token){hint}."
    )


def _stack(name: str, value: Sequence[object], axes: int) -> NDArray[Any]:
    if not value:
        raise ValueError(f"{name} is empty; expected one array for each layer.")
    inner = _inner_axes(value)
    if inner > axes:
        raise ValueError(_STEPS.format(name))
    parts = [whole_array(f"{name}, layer {layer},", part) for layer, part in enumerate(value)]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1 and inner == axes:  # steps without their batch axis
        raise ValueError(_STEPS.format(name))
    if len(shapes) > 1:
        raise ValueError(
            f"{name} differ in shape from layer to layer: "
            f"{', '.join(map(str, sorted(shapes)))}; save the same tokens for every layer."
        )
    for layer, part in enumerate(parts):
        check_float(f"{name}, layer {layer},", part)
    return np.stack(parts)


def _inner_axes(value: Sequence[object]) -> int:
    """Return the axes of the arrays in nested sequences; 0 without such arrays."""
    first = value[0]
    inner = first[0] if isinstance(first, list | tuple) and first else None
    return int(getattr(inner, "ndim", 0))
