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

from wdsbench.errors import TraceError
from wdsbench.records import Trace
from wdsbench.traces.arrays import as_array, damaged_file, is_tensor, located
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
        raise damaged_file("torch file", error, str(path)) from error


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


def sequence_traces(content: Mapping[str, Any], file: str) -> Iterator[Trace | TraceError]:
    """Yield each trace of a preprocessed file, without token ids and texts, or its error.

    ``content`` has ``sequences`` (tensor or array ``[n, L, D]`` or n of ``[L, D]``; traces of T =
    1) or ``graphs`` (n lists of L PyG ``Data``, module ``graphs``; traces with edges), n
    ``question_ids`` and optionally n ``labels`` of 0 or 1.

    Raises:
        TraceError: A part is missing, or counts differ.
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
        found: Trace | TraceError
        try:
            with located(file, position):
                found = _trace(raw, parts[position], name, file, position)
        except TraceError as error:
            found = error
        yield found


def _parts(parts: Any, name: str) -> Any:
    if isinstance(parts, list | tuple):
        return parts
    if name == "graphs":
        raise ValueError(f"graphs is a {type(parts).__name__}; expected n lists of Data.")
    is_array = is_tensor(parts) or isinstance(parts, np.ndarray)
    if not is_array or parts.ndim != 3:
        shape = tuple(parts.shape) if is_array else type(parts).__name__
        raise ValueError(
            f"sequences is {shape}; expected a tensor [n, layers, features] or a list of n "
            "tensors [layers, features]."
        )
    return parts


def _trace(raw: Mapping[str, Any], part: Any, name: str, file: str, position: int) -> Trace:
    """Return a sequence or graphs as a trace of unknown tokens, after the checks of raw traces."""
    graphs = read_graphs(part) if name == "graphs" else None
    states = part if graphs is None else graphs[0]
    tokens = 1 if graphs is None else len(graphs[0][0])
    if graphs is None:
        shape = tuple(part.shape) if is_tensor(part) else np.shape(part)
        if len(shape) != 2:
            raise ValueError(f"a sequence has shape {shape}; expected [layers, features].")
    placeholders = {
        "tokens": [0] * tokens,
        "tokens_decoded": ["?"] * tokens,
        "generated_answer_clean": "",
    }
    trace = check_trace({**raw, **placeholders, "hidden_states": states}, file, position)
    trace = replace(trace, tokens=np.empty(0, dtype=np.int64), token_texts=[])
    return trace if graphs is None else replace(trace, graphs=graphs[1], remarks=graphs[2])


def _column(content: Mapping[str, Any], name: str, count: int, counted: str) -> Sequence[object]:
    value = content.get(name)
    if value is None:
        keys = ", ".join(sorted(map(str, content)))
        raise ValueError(f"{name} is missing (keys found: {keys}).")
    values = value if isinstance(value, list | tuple) else list(as_array(value).reshape(-1))
    if len(values) != count:
        raise ValueError(f"{len(values)} {name} and {count} {counted}; expected the same number.")
    return values
