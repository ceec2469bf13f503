"""Arrays and layers of a raw trace; errors are ``ValueError``, and ``check`` adds the trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.traces.arrays import as_array, shown

STATES_OF: Final = ("all", "answer", "last")

_FLOATS: Final = (np.float16, np.float32, np.float64)
#: Error for steps that hold layers instead of layers.
_STEPS: Final = (
    "{0} holds one tuple per generation step, as generate() returns them; run one forward pass over"
    " prompt and answer and save its {0}."
)


def stacked_layers(name: str, value: object, axes: int) -> tuple[NDArray[Any], bool]:
    """Return layers as one array ``[L, ...]`` with ``axes`` axes each, and whether there was a
    batch axis of 1, which is dropped.

    Args:
        name: The raw trace's key. ``hidden_states`` may have one axis fewer: a vector each.
        value: A sequence of L arrays, or all of them as one.
        axes: Of each layer.

    Returns:
        C-contiguous, in native byte order.

    Raises:
        ValueError: The layers are not arrays of floats of one shape, or not layers.
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
        raise ValueError(
            f"{name} together have shape {stacked.shape}; expected {form}, none of them 0."
        )
    native = np.asarray(stacked, dtype=stacked.dtype.newbyteorder("="), order="C")
    return native, batch_axis


def whole_array(name: str, value: object) -> NDArray[Any]:
    """Return a value as one array.

    Raises:
        ValueError: The value is not an array.
    """
    if value is None:
        raise ValueError(
            f"{name} is None; save it, or leave the whole key out where it may be missing."
        )
    try:
        return as_array(value)
    except ValueError as error:
        said = str(error).splitlines()[0]
        raise ValueError(f"{name} cannot be read as one array: {said}.") from error


def check_float(name: str, values: NDArray[Any]) -> None:
    """Raise ValueError where the values are not floats that traces may have."""
    if values.dtype.newbyteorder("=") not in _FLOATS:
        raise ValueError(
            f"{name} has dtype {values.dtype}; expected float16, float32, float64 (and "
            "bfloat16 as a torch tensor)."
        )


def tokens_of_states(said: object, states: int, token_count: int, prompt_length: int | None) -> str:
    """Return the tokens that states belong to: ``all``, ``answer`` or ``last``.

    Args:
        said: Value of the raw trace's key ``states_of``; None: not given.
        states: Tokens with states.
        token_count: Tokens of the trace.
        prompt_length: Tokens of the prompt, if known.

    Raises:
        ValueError: ``said`` is unknown or does not fit the number of states, or ``said`` is None
            and the states are neither those of all tokens nor one.
    """
    answer = None if prompt_length is None else token_count - prompt_length
    if said is not None:
        counts = dict(zip(STATES_OF, (token_count, answer, 1), strict=True))
        if not isinstance(said, str) or said not in counts:
            raise ValueError(
                f"states_of is {shown(said)}; expected {', '.join(STATES_OF)}, or leave it out."
            )
        if states != counts[said]:
            raise ValueError(
                f"hidden_states of {states} tokens beside {token_count} tokens and states_of"
                f" {said!r}; expected"
                f" {counts[said] or 'those of the answer, with its prompt_length'}."
            )
    if states == token_count:
        return "all"
    if said == "answer":
        return "answer"
    if states == 1:
        return "last"
    hint = (
        ". A common cause: generate() returns no state for the token it produced last; run one"
        " forward pass over prompt and answer and save that"
    )
    if states == answer:
        hint = (
            f"; or {states} with states_of 'answer', if they are the answer's of one forward pass"
            " over prompt and answer (those of generate() belong to the tokens before)"
        )
    raise ValueError(
        f"hidden_states of {states} tokens beside {token_count} tokens; expected {token_count}, or"
        f" 1 (the last token){hint}."
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
    """Return the axes of the arrays within sequences within ``value``; 0: it holds none."""
    first = value[0]
    inner = first[0] if isinstance(first, list | tuple) and first else None
    return int(getattr(inner, "ndim", 0))
