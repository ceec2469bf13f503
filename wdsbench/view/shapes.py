"""Summaries that inspecting data sets and raw files share: shapes, ranges, layers, tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.traces.arrays import is_tensor

#: Most kinds of values by which a key is described; more are "mixed".
_KINDS_SHOWN: Final = 4


class LayerRange:
    """Smallest and largest finite value of a layer, root mean square, NaN and infinities."""

    def __init__(self) -> None:
        self._low, self._high, self._squares = math.inf, -math.inf, 0.0
        self._finite = self._nan = self._infinite = 0

    def add(self, values: NDArray[Any]) -> None:
        """Add the layer's states of one trace."""
        flat = values.reshape(-1).astype(np.float32)
        finite = np.isfinite(flat)
        if not finite.all():
            self._nan += int(np.isnan(flat).sum())
            self._infinite += int(np.isinf(flat).sum())
            flat = flat[finite]
        if flat.size:
            self._low = min(self._low, float(flat.min()))
            self._high = max(self._high, float(flat.max()))
            self._squares += float(np.square(flat, dtype=np.float64).sum())
            self._finite += flat.size

    def as_json(self) -> dict[str, Any]:
        """Return the range as JSON values; None without a finite value."""
        count = self._finite
        return {
            "min": self._low if count else None,
            "max": self._high if count else None,
            "rms": math.sqrt(self._squares / count) if count else None,
            "nan": self._nan,
            "infinite": self._infinite,
        }


class Ranges:
    """The ranges of the layers of several traces."""

    def __init__(self) -> None:
        self._layers: defaultdict[int, LayerRange] = defaultdict(LayerRange)

    def add(self, layers: Iterable[NDArray[Any]]) -> None:
        """Add the states of one trace."""
        for number, values in enumerate(layers):
            self._layers[number].add(values)

    def as_json(self) -> list[dict[str, Any]]:
        """Return one row per layer."""
        return [{"layer": n, **layer.as_json()} for n, layer in self._layers.items()]


@dataclass
class KeyShape:
    """The values of one key, over all traces."""

    traces: int = 0
    kinds: dict[str, None] = field(default_factory=dict)
    dtypes: dict[str, None] = field(default_factory=dict)
    axes: list[tuple[int, int]] | None = None
    ragged: bool = False

    def add(self, kind: str, shape: tuple[int, ...] | None, dtype: str | None) -> None:
        """Add one value."""
        self.traces += 1
        self.kinds[kind] = None
        if dtype is not None:
            self.dtypes[dtype] = None
        if shape is None or self.ragged:
            return
        if self.axes is None:
            self.axes = [(size, size) for size in shape]
        elif len(self.axes) != len(shape):
            self.ragged = True
        else:
            self.axes = [
                (min(low, size), max(high, size))
                for (low, high), size in zip(self.axes, shape, strict=True)
            ]

    def as_json(self) -> dict[str, Any]:
        """Return type, shape (axes that differ as ``"3..17"``), dtype and number of traces."""
        kinds = list(self.kinds)
        shape = None
        if self.axes is not None and not self.ragged:
            shape = [low if low == high else f"{low}..{high}" for low, high in self.axes]
        return {
            "type": " or ".join(kinds) if len(kinds) <= _KINDS_SHOWN else "mixed",
            "shape": "ragged" if self.ragged else shape,
            "dtype": " or ".join(self.dtypes) or None,
            "traces": self.traces,
        }


def described(value: object) -> tuple[str, tuple[int, ...] | None, str | None]:
    """Return (type, shape, dtype) of a value, arrays in a list as one more axis."""
    if isinstance(value, np.ndarray):
        return "array", value.shape, str(value.dtype)
    if is_tensor(value):
        tensor: Any = value
        return "tensor", tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if isinstance(value, list | tuple):
        return _described_list(value)
    if isinstance(value, str):
        return "text", None, None
    return ("nothing" if value is None else type(value).__name__), None, None


def _described_list(values: Sequence[Any]) -> tuple[str, tuple[int, ...] | None, str | None]:
    if not values:
        return "list", (0,), None
    # Token ids or texts: the first describes all.
    scalars = isinstance(values[0], int | float | str)
    parts = {described(value) for value in (values[:1] if scalars else values)}
    kinds = " or ".join(sorted({kind for kind, _, _ in parts}))
    shapes = {shape for _, shape, _ in parts}
    dtypes = " or ".join(sorted({dtype for _, _, dtype in parts if dtype}))
    (first, *others) = shapes
    inner = first if not others and first is not None else ()
    ragged = "" if not others else " of several shapes"
    return f"list of {kinds}{ragged}", (len(values), *inner), dtypes or None


def spread(values: Any) -> dict[str, float] | None:
    """Return minimum, median, mean, maximum and sum; None without values."""
    array = np.asarray(values, np.int64)
    if not array.size:
        return None
    return {
        "min": int(array.min()),
        "median": float(np.median(array)),
        "mean": float(array.mean()),
        "max": int(array.max()),
        "total": int(array.sum()),
    }


def numbered_layers(
    rows: list[dict[str, Any]], model_layers: tuple[int, ...] | None
) -> list[dict[str, Any]]:
    """Return rows of layers with their numbers in the model, if only some layers are stored."""
    if model_layers is None:
        return rows
    return [
        {"layer": row["layer"], "model_layer": number, **row}
        for row, number in zip(rows, model_layers, strict=True)
    ]


def token_rows(
    tokens: Sequence[int],
    texts: Sequence[str],
    prompt_length: int | None,
    logprobs: Sequence[float | None] | None,
) -> list[dict[str, Any]]:
    """Return one row per token: place, id, text, part (prompt or answer), log-probability."""
    rows = []
    for place, token in enumerate(tokens):
        answer = None if prompt_length is None else place - prompt_length
        logprob = None
        if logprobs is not None and answer is not None and 0 <= answer < len(logprobs):
            logprob = logprobs[answer]
        rows.append(
            {
                "place": place,
                "id": int(token),
                "text": texts[place] if place < len(texts) else None,
                "part": None if answer is None else ("prompt" if answer < 0 else "answer"),
                "logprob": None if logprob is None or math.isinf(logprob) else logprob,
            }
        )
    return rows
