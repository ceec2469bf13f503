"""Encode the members of a trace: arrays as npy, everything else as JSON."""

from __future__ import annotations

import functools
import io
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.records import EdgeLists, Trace
from wdsbench.shards.format.kinds import KINDS
from wdsbench.shards.format.tar import Pieces


def npy_pieces(array: NDArray[Any]) -> Pieces:
    """Return header (padded to 64 bytes, NEP 1) and bytes of a C-contiguous array, uncopied."""
    if not array.flags.c_contiguous:
        raise ValueError("array: must be C-contiguous")
    return [_npy_header(array.dtype, array.shape), array.reshape(-1).view(np.uint8)]


@functools.lru_cache(1024)
def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    values = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, values)
    return header.getvalue()


def edge_members(kind: str, edges: EdgeLists, tokens: int) -> dict[str, Pieces]:
    """Return the members of ``edges`` or ``heads``.

    Indices have the narrowest unsigned type that holds ``tokens - 1``.
    """
    narrow = edges.index.astype(np.min_scalar_type(max(tokens - 1, 0)), order="C")
    names = (spec.name for spec in KINDS[kind].members)
    arrays = (narrow, edges.pointer, edges.weight)
    return dict(zip(names, map(npy_pieces, arrays), strict=True))


def causal_half(attentions: list[NDArray[Any]]) -> NDArray[np.float16]:
    """Return float16 ``[L, H, T (T + 1) / 2]``: row by row the weights on tokens j <= i."""
    tokens = attentions[0].shape[-1]
    rows, columns = np.tril_indices(tokens)
    halves = np.stack([layer[:, rows, columns].astype(np.float16) for layer in attentions])
    return np.ascontiguousarray(halves)  # stacks of indexed arrays are not


def meta_member(trace: Trace, trace_number: int, file_name: str) -> Pieces:
    """Return ``meta.json``, the part of a trace that is not an array."""
    logprobs = None
    if trace.token_logprobs is not None:
        # The shortest text that reads back as the same float32; JSON has no infinities.
        logprobs = [
            float(str(value)) if math.isfinite(value) else None for value in trace.token_logprobs
        ]
    meta: dict[str, Any] = {
        "question_id": trace.question_id,
        "trace": trace_number,
        "tokens": trace.tokens.tolist(),
        "token_texts": trace.token_texts,
        "prompt_length": trace.prompt_length,
        "answer": trace.answer,
        "token_logprobs": logprobs,
        "provenance": {
            "file": file_name,
            "position": trace.position,
            "remarks": list(trace.remarks),
        },
    }
    for name in ("question", "context", "group"):
        if getattr(trace, name) is not None:
            meta[name] = getattr(trace, name)
    if trace.layers is not None:
        meta["layers"] = list(trace.layers)
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return [text.encode("ascii")]
