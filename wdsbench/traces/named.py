"""Traces as named arrays, the content of ``.safetensors``, ``.npz`` and HDF5 files.

    hidden_states, attentions                   all layers in one array, or
    hidden_states.0, hidden_states.1, ...       one array per layer
    tokens, reduced_attention.edges_index, ...  other keys of the raw format, and its entries
    12.hidden_states, 12.tokens, ...            the same for trace 12 of a file of several

Other values are in a JSON object ``meta`` under the same keys: ``{"question_id": "q1", ...}``, or
``{"12": {"question_id": "q1", ...}}``. Unknown names are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import TraceError, first_line
from wdsbench.traces.arrays import is_tensor, located, shown, tensor_to_numpy

META: Final = "meta"
LAYERED: Final = ("hidden_states", "attentions")
REDUCED: Final = "reduced_attention"
KEYS: Final = frozenset(
    (
        *LAYERED,
        REDUCED,
        "tokens",
        "question_id",
        "tokens_decoded",
        "generated_answer_clean",
        "prompt_length",
        "token_logprobs",
        "trace_number",
        "label",
        "question",
        "context",
        "group",
        "layers",
        "states_of",
        "packed_from",
    )
)
#: Values that are plain text, not JSON, in files that hold only text.
TEXTS: Final = frozenset(
    (
        "question_id",
        "generated_answer_clean",
        "question",
        "context",
        "group",
        "states_of",
        f"{REDUCED}.edge_rule",
    )
)

_NUMBERED: Final = re.compile(r"([0-9]{1,18})\.(.+)", re.DOTALL)

#: Reads one named value when its trace is reached.
Reader = Callable[[], Any]


#: One trace of a file: readers of its values by name, without the trace's number.
NamedTrace = dict[str, Reader]


def group_names(readers: Mapping[str, Reader], meta: object) -> list[NamedTrace]:
    """Return the traces of a file from the readers of its arrays and the parsed ``meta``."""
    found = {name: reader for name, reader in readers.items() if _is_known(name)}
    if meta is not None and not isinstance(meta, Mapping):
        raise ValueError(f"meta is {shown(meta)}; expected a JSON object.")
    for name, value in _meta_values(meta or {}):
        found.setdefault(name, _constant(value))
    if not found:
        names = ", ".join(sorted(map(str, readers))[:10]) or "none"
        raise ValueError(
            f"no array has the name of a part of a trace (names: {names}); expected hidden_states,"
            " tokens, ..., or 0.hidden_states, 0.tokens, ... for several traces."
        )
    numbered = [match for match in map(_NUMBERED.fullmatch, found) if match]
    if not numbered:
        return [found]
    if len(numbered) < len(found):
        plain = next(name for name in found if not _NUMBERED.fullmatch(name))
        raise ValueError(
            f"names with a trace number ({numbered[0][0]}) are mixed with names without one"
            f" ({plain}); number all names of a file, or none if it holds one trace."
        )
    traces: dict[int, NamedTrace] = {}
    for match in numbered:
        traces.setdefault(int(match[1]), {})[match[2]] = found[match[0]]
    return [traces[number] for number in sorted(traces)]


def read_named(readers: Mapping[str, Reader], meta: object, file: str) -> Iterator[dict[str, Any]]:
    """Yield the raw dict of each trace of a file; see `group_names` and `raw_traces`."""
    with located(file):
        traces = group_names(readers, meta)
    yield from raw_traces(traces, file)


def raw_traces(traces: Iterable[NamedTrace], file: str) -> Iterator[dict[str, Any]]:
    """Yield the raw dict of each trace, one in memory; raise TraceError if one is damaged."""
    for position, trace in enumerate(traces):
        try:
            raw = _raw(trace)
        except MemoryError as error:
            detail = "the trace needs more memory than this machine has."
            raise TraceError(detail, file=file, position=position) from error
        except (ValueError, OSError, EOFError) as error:
            raise TraceError(f"{first_line(error)}.", file=file, position=position) from error
        yield raw


def parse_json(text: str | bytes, name: str) -> Any:
    """Return the parsed text; raise ValueError if it is not JSON in UTF-8."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON ({first_line(error)})") from error


def as_value(array: NDArray[Any]) -> Any:
    """Return an array of texts (UTF-8) as ``str`` or lists of them, any other array unchanged."""
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    return array.tolist() if array.dtype.kind == "U" else array


def named_values(
    raw: Mapping[str, Any], number: int | None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return a raw trace's arrays by name, numbered unless ``number`` is None, and the rest for
    ``meta``.

    Raises:
        TypeError: A value is neither an array nor representable in JSON.
    """
    start = "" if number is None else f"{number}."
    arrays: dict[str, NDArray[Any]] = {}
    meta: dict[str, Any] = {}
    for key, value in raw.items():
        for name, part in _parts(key, value):
            if is_tensor(part):
                part = tensor_to_numpy(part)
            array = _array_of(name, part)
            if array is None:
                meta[name] = _json_value(name, part)
            else:
                arrays[start + name] = array
    return arrays, meta


def meta_bytes(metas: list[dict[str, Any]], *, single: bool) -> bytes:
    """Return the JSON object of a file: of one trace, or of several by their numbers."""
    content = metas[0] if single else {str(number): meta for number, meta in enumerate(metas)}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _raw(values: NamedTrace) -> dict[str, Any]:
    """Read a trace; raise ValueError unless layers are 0 .. L - 1, or one array."""
    raw: dict[str, Any] = {}
    layers: dict[str, dict[int, Reader]] = {}
    for name, read in values.items():
        key, _, rest = name.partition(".")
        if not rest:
            raw[key] = read()
        elif key in LAYERED and rest.isdecimal():
            layers.setdefault(key, {})[int(rest)] = read
        elif key == REDUCED:
            raw.setdefault(REDUCED, {})[rest] = read()
    for key, readers in layers.items():
        if key in raw:
            raise ValueError(f"{key} is stored as one array and layer by layer; keep one")
        if sorted(readers) != list(range(len(readers))):
            found = ", ".join(map(str, sorted(readers)))
            raise ValueError(f"{key} has layers {found}; expected 0 .. {len(readers) - 1}")
        raw[key] = [readers[layer]() for layer in range(len(readers))]
    return raw


def _constant(value: Any) -> Reader:
    return lambda: value


def _is_known(name: str) -> bool:
    match = _NUMBERED.fullmatch(name)
    return (match[2] if match else name).partition(".")[0] in KEYS


def _meta_values(meta: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in meta.items():
        if key.isdecimal() and isinstance(value, Mapping):
            for inner, part in value.items():
                if _is_known(inner):
                    yield f"{key}.{inner}", part
        elif _is_known(key):
            yield key, value


def _parts(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if key == REDUCED and isinstance(value, Mapping):
        for name, part in value.items():
            yield f"{key}.{name}", part
    elif key in LAYERED and isinstance(value, list | tuple):
        for layer, part in enumerate(value):
            yield f"{key}.{layer}", part
    elif value is not None:
        yield key, value


def _array_of(name: str, value: Any) -> NDArray[Any] | None:
    """Return the array to store; None if the value belongs in ``meta``."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.ndim:
        return np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
    if name == "tokens" and isinstance(value, list | tuple) and value:
        tokens = np.asarray(value)
        return tokens.astype("<i8") if tokens.dtype.kind in "iu" else None
    return None


def _json_value(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        detail = f"{name} cannot be written ({error}); save arrays, texts or numbers"
        raise TypeError(detail) from error
    return value
