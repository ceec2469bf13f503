"""Read ``.pt`` files: preprocessed ``sequences``, or raw traces saved with ``torch.save``."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.errors import TraceError
from wdsbench.records import Trace
from wdsbench.traces.arrays import as_array, is_tensor
from wdsbench.traces.check import check_trace


def load_tensors(path: Path) -> object:
    """Return what ``torch.save`` wrote, on the CPU; by ``torch.load(weights_only=True)``.

    Raises:
        TraceError: The file cannot be opened, is cut short or damaged, or names something that
            torch does not allow.
    """
    import torch

    try:
        with warnings.catch_warnings():
            # torch remarks on its own storage classes when it reads its older file format.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Without torch's own words: they advise to load the file unsafely.
        raise TraceError(
            "torch.load(weights_only=True) refuses the file, and nothing in it was run: it holds "
            "more than tensors, numbers, strings, lists and dicts, or is damaged, or torch.save "
            "did not write it; save NumPy arrays as tensors, or with pickle.dump under a name "
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


def is_sequences(content: object) -> bool:
    """Return whether a loaded file is in the preprocessed form."""
    return isinstance(content, Mapping) and ("sequences" in content or "graphs" in content)


def sequence_traces(content: Mapping[str, Any], file: str) -> Iterator[Trace]:
    """Yield the traces of a preprocessed file: T = 1, hidden ``[L, 1, D]``, no tokens, label set.

    Args:
        content: ``sequences``: tensor ``[n, L, D]`` or n tensors ``[L, D]``; ``question_ids``: n
            texts or integers; ``labels``: n of 0 or 1, or missing where scores will bring them.
        file: Name for the record and for errors.

    Raises:
        TraceError: A part is missing, counts differ, or a sequence has a wrong dtype or shape or
            holds NaN.
    """
    if "sequences" not in content:
        raise TraceError(
            "the file holds graphs; reading preprocessed graphs is not built yet: pack the raw "
            "traces (.pkl, .pkl.gz) that they were made from.",
            file=file,
        )
    sequences = content["sequences"]
    if not (isinstance(sequences, list | tuple) or (is_tensor(sequences) and sequences.ndim == 3)):
        shape = tuple(sequences.shape) if is_tensor(sequences) else type(sequences).__name__
        raise TraceError(
            f"sequences is {shape}; allowed is a tensor [n, layers, features] or a list of n "
            "tensors [layers, features].",
            file=file,
        )
    count = len(sequences)
    ids = _column(content, "question_ids", count, file)
    labels = _column(content, "labels", count, file) if content.get("labels") is not None else None
    for position in range(count):
        yield _sequence_trace(
            sequences[position],
            ids[position],
            None if labels is None else labels[position],
            file,
            position,
        )


def _sequence_trace(
    states: Any, question_id: object, label: object, file: str, position: int
) -> Trace:
    """Return one sequence as a trace, through the same checks as raw traces pass."""
    shape = tuple(states.shape) if is_tensor(states) else np.shape(states)
    if len(shape) != 2:
        raise TraceError(
            f"a sequence has shape {shape}; allowed is [layers, features].",
            file=file,
            position=position,
        )
    trace = check_trace(
        {
            "hidden_states": states,
            "tokens": [0],  # stands for the one token whose states these are; its id is not known
            "question_id": question_id,
            "label": label,
            "tokens_decoded": ["?"],
            "generated_answer_clean": "",
        },
        file,
        position,
    )
    return Trace(
        question_id=trace.question_id,
        hidden=trace.hidden,
        attentions=None,
        tokens=np.empty(0, dtype=np.int64),
        token_texts=[],
        answer="",
        label=trace.label,
        file=file,
        position=position,
    )


def _column(content: Mapping[str, Any], name: str, count: int, file: str) -> Sequence[object]:
    value = content.get(name)
    if value is None:
        raise TraceError(
            f"{name} is missing beside sequences (keys found: "
            f"{', '.join(sorted(map(str, content)))}).",
            file=file,
        )
    values: Sequence[object] = (
        value if isinstance(value, list | tuple) else list(as_array(value).reshape(-1))
    )
    if len(values) != count:
        raise TraceError(
            f"{len(values)} {name} beside {count} sequences; allowed are as many.", file=file
        )
    return values


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else "no detail"
