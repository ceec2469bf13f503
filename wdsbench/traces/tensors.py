"""``.pt`` files: preprocessed ``sequences`` or ``graphs``, or raw traces of ``torch.save``."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.errors import TraceError, first_line
from wdsbench.records import Trace
from wdsbench.traces.arrays import as_array, is_tensor, located
from wdsbench.traces.check import check_trace
from wdsbench.traces.graphs import SAFE_GLOBALS, read_graphs
from wdsbench.traces.stand_ins import SAFE_VALUES


def load_tensors(path: Path) -> object:
    """Return the content of a ``.pt`` file, on the CPU, by ``torch.load(weights_only=True)``, which
    calls only stand-ins of ours (modules ``stand_ins``, ``graphs``).

    Raises:
        TraceError: The file cannot be read, or names an object that is not allowed.
    """
    import torch

    try:
        with warnings.catch_warnings():
            # torch warns about its own storage classes when it reads its older file format.
            warnings.simplefilter("ignore")
            with _only_our_globals():
                return torch.load(path, map_location="cpu", weights_only=True)
    except TraceError as error:  # of a stand-in
        raise TraceError(error.detail, file=str(path)) from error
    except pickle.UnpicklingError as error:
        # Without torch's own text, which suggests to load the file unsafely.
        raise TraceError(
            "torch.load(weights_only=True) refuses the file, and nothing in it was run: it holds "
            "more than tensors, NumPy arrays, numbers, strings, lists and dicts, or is damaged, or "
            "torch.save did not write it; save only such values, or use pickle.dump and a name "
            "ending in .pkl.",
            file=str(path),
        ) from error
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}.", file=str(path)) from error
    except Exception as error:  # a damaged file can raise anything
        raise TraceError(
            f"not a readable torch file ({type(error).__name__}: {first_line(error)}); the file "
            "is cut short or damaged, write or copy it again.",
            file=str(path),
        ) from error


@contextmanager
def _only_our_globals() -> Iterator[None]:
    """Replace the safe globals by our stand-ins, which real NumPy functions do not accept."""
    import torch

    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        torch.serialization.add_safe_globals([*SAFE_GLOBALS, *SAFE_VALUES])  # type: ignore[list-item]
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)


def is_sequences(content: object) -> bool:
    """Return whether a loaded file is in the preprocessed form."""
    return isinstance(content, Mapping) and ("sequences" in content or "graphs" in content)


def sequence_traces(content: Mapping[str, Any], file: str) -> Iterator[Trace]:
    """Yield the traces of a preprocessed file, which have no token ids and texts.

    Args:
        content: ``sequences``: tensor or array ``[n, L, D]`` or n of ``[L, D]``, traces of T = 1;
            or ``graphs``: n lists of L PyG ``Data`` (module ``graphs``), traces of T tokens with
            edges; ``question_ids``: n texts or integers; ``labels``: n of 0 or 1, optional.
        file: Name for the record and for errors.

    Raises:
        TraceError: A part is missing, counts differ, or a sequence or graph is invalid.
    """
    name = "sequences" if "sequences" in content else "graphs"
    with located(file):
        parts = _parts(content[name], name)
        count = len(parts)
        ids = _column(content, "question_ids", count, name)
        has_labels = content.get("labels") is not None
        labels = _column(content, "labels", count, name) if has_labels else [None] * count
    for position in range(count):
        raw = {"question_id": ids[position], "label": labels[position]}
        with located(file, position):
            if name == "sequences":
                trace = _sequence_trace(raw, parts[position], file, position)
            else:
                states, edges, remarks = read_graphs(parts[position])
                trace = _states_trace(raw, states, len(states[0]), file, position)
                trace = replace(trace, graphs=edges, remarks=remarks)
        yield trace


def _parts(parts: Any, name: str) -> Any:
    """Return ``sequences`` or ``graphs`` if it has n parts."""
    if isinstance(parts, list | tuple):
        return parts
    if name == "graphs":
        raise ValueError(
            f"graphs is a {type(parts).__name__}; expected n lists of one Data per layer."
        )
    is_array = is_tensor(parts) or isinstance(parts, np.ndarray)
    if not is_array or parts.ndim != 3:
        shape = tuple(parts.shape) if is_array else type(parts).__name__
        raise ValueError(
            f"sequences is {shape}; expected a tensor [n, layers, features] or a list of n "
            "tensors [layers, features]."
        )
    return parts


def _sequence_trace(raw: Mapping[str, Any], states: Any, file: str, position: int) -> Trace:
    shape = tuple(states.shape) if is_tensor(states) else np.shape(states)
    if len(shape) != 2:
        raise ValueError(f"a sequence has shape {shape}; expected [layers, features].")
    return _states_trace(raw, states, 1, file, position)


def _states_trace(
    raw: Mapping[str, Any], states: Any, tokens: int, file: str, position: int
) -> Trace:
    """Return states as a trace of unknown tokens, after the checks of raw traces."""
    placeholders = {
        "tokens": [0] * tokens,
        "tokens_decoded": ["?"] * tokens,
        "generated_answer_clean": "",
    }
    trace = check_trace({**raw, **placeholders, "hidden_states": states}, file, position)
    return replace(trace, tokens=np.empty(0, dtype=np.int64), token_texts=[])


def _column(content: Mapping[str, Any], name: str, count: int, counted: str) -> Sequence[object]:
    """Return the ``count`` values of a key, one for each of ``counted``."""
    value = content.get(name)
    if value is None:
        keys = ", ".join(sorted(map(str, content)))
        raise ValueError(f"{name} is missing (keys found: {keys}).")
    values = value if isinstance(value, list | tuple) else list(as_array(value).reshape(-1))
    if len(values) != count:
        raise ValueError(f"{len(values)} {name} and {count} {counted}; expected the same number.")
    return values
