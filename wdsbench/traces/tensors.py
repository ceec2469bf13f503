"""Read ``.pt`` files: preprocessed ``sequences`` or ``graphs``, or raw traces saved with
``torch.save``.
"""

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
from wdsbench.traces.arrays import as_array, is_tensor
from wdsbench.traces.check import check_trace
from wdsbench.traces.graphs import SAFE_GLOBALS, read_graphs
from wdsbench.traces.stand_ins import SAFE_VALUES


def load_tensors(path: Path) -> object:
    """Return what ``torch.save`` wrote, on the CPU; by ``torch.load(weights_only=True)``.

    Torch is given stand-ins of ours (modules ``stand_ins``, ``graphs``) under the names of what
    NumPy arrays, plain containers and PyG's ``Data`` are pickled with, and calls nothing else.

    Raises:
        TraceError: The file cannot be opened, is cut short or damaged, or names something that
            torch does not allow.
    """
    import torch

    try:
        with warnings.catch_warnings():
            # torch remarks on its own storage classes when it reads its older file format.
            warnings.simplefilter("ignore")
            with _only_our_globals():
                return torch.load(path, map_location="cpu", weights_only=True)
    except TraceError as error:  # of a stand-in
        raise TraceError(error.detail, file=str(path)) from error
    except pickle.UnpicklingError as error:
        # Without torch's own words: they advise to load the file unsafely.
        raise TraceError(
            "torch.load(weights_only=True) refuses the file, and nothing in it was run: it holds "
            "more than tensors, NumPy arrays, numbers, strings, lists and dicts, or is damaged, or "
            "torch.save did not write it; save such plain values, or with pickle.dump under a name "
            "ending in .pkl.",
            file=str(path),
        ) from error
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}.", file=str(path)) from error
    except Exception as error:  # a damaged file can raise anything
        raise TraceError(
            f"not a readable torch file ({type(error).__name__}: {_first_line(error)}); the file "
            "is cut short or damaged, write or copy it again.",
            file=str(path),
        ) from error


@contextmanager
def _only_our_globals() -> Iterator[None]:
    """Allow torch to name our stand-ins and nothing that the program has allowed it beside them.

    A name that both allow would be either's, and real NumPy functions do not fit our stand-ins.
    """
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
    """Yield the traces of a preprocessed file: no token ids and texts, label set.

    Args:
        content: ``sequences``: tensor or array ``[n, L, D]`` or n of ``[L, D]``, traces of T = 1;
            or ``graphs``: n lists of L PyG ``Data`` (module ``graphs``), traces of T tokens with
            edges; ``question_ids``: n texts or integers; ``labels``: n of 0 or 1, or missing where
            scores will bring them.
        file: Name for the record and for errors.

    Raises:
        TraceError: A part is missing, counts differ, or a sequence or graph has a wrong dtype or
            shape or holds NaN.
    """
    name = "sequences" if "sequences" in content else "graphs"
    parts = content[name]
    if name == "graphs" and not isinstance(parts, list | tuple):
        raise TraceError(
            f"graphs is a {type(parts).__name__}; expected a list of n lists, each of a Data for"
            " every layer.",
            file=file,
        )
    is_array = is_tensor(parts) or isinstance(parts, np.ndarray)
    if not (isinstance(parts, list | tuple) or (is_array and parts.ndim == 3)):
        shape = tuple(parts.shape) if is_array else type(parts).__name__
        raise TraceError(
            f"sequences is {shape}; expected a tensor [n, layers, features] or a list of n "
            "tensors [layers, features].",
            file=file,
        )
    count = len(parts)
    ids = _column(content, "question_ids", count, name, file)
    has_labels = content.get("labels") is not None
    labels = _column(content, "labels", count, name, file) if has_labels else [None] * count
    make = _sequence_trace if name == "sequences" else _graph_trace
    for position in range(count):
        yield make(parts[position], ids[position], labels[position], file, position)


def _sequence_trace(
    states: Any, question_id: object, label: object, file: str, position: int
) -> Trace:
    """Return one sequence as a trace, through the same checks as raw traces pass."""
    shape = tuple(states.shape) if is_tensor(states) else np.shape(states)
    if len(shape) != 2:
        raise TraceError(
            f"a sequence has shape {shape}; expected [layers, features].",
            file=file,
            position=position,
        )
    return _untold(states, 1, question_id, label, file, position)


def _graph_trace(
    graphs: Any, question_id: object, label: object, file: str, position: int
) -> Trace:
    """Return one list of graphs as a trace with edges."""
    states, edges, remarks = read_graphs(graphs, file, position)
    trace = _untold(states, len(states[0]), question_id, label, file, position)
    return replace(trace, graphs=edges, remarks=remarks)


def _untold(
    states: Any, tokens: int, question_id: object, label: object, file: str, position: int
) -> Trace:
    """Return states as a trace of whose tokens nothing is known."""
    trace = check_trace(
        {
            "hidden_states": states,
            "tokens": [0] * tokens,  # placeholders; no id is known
            "question_id": question_id,
            "label": label,
            "tokens_decoded": ["?"] * tokens,
            "generated_answer_clean": "",
        },
        file,
        position,
    )
    return replace(trace, tokens=np.empty(0, dtype=np.int64), token_texts=[])


def _column(
    content: Mapping[str, Any], name: str, count: int, beside: str, file: str
) -> Sequence[object]:
    value = content.get(name)
    if value is None:
        raise TraceError(
            f"{name} is missing beside {beside} (keys found: "
            f"{', '.join(sorted(map(str, content)))}).",
            file=file,
        )
    values: Sequence[object] = (
        value if isinstance(value, list | tuple) else list(as_array(value).reshape(-1))
    )
    if len(values) != count:
        raise TraceError(
            f"{len(values)} {name} beside {count} {beside}; expected the same number.", file=file
        )
    return values


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else "no detail"
