"""The slow, obvious twin of every fast path: what the numbers must be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUIET_BIT = np.uint32(1 << 22)


def widen_half(bits: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """Return the float32 bits of float16 bits; NumPy keeps signalling NaNs, the contract quiets."""
    values = bits.view(np.float16).astype(np.float32)
    out = values.view(np.uint32).copy()
    out[np.isnan(values)] |= QUIET_BIT
    return out


def mean_edges(
    attention: NDArray[Any], kind: str, value: float
) -> list[tuple[int, int, np.float16]]:
    """Return (j, i, weight) of one layer's ``[H, T, T]`` attention, ordered by i, then j."""
    mean = attention.astype(np.float64).sum(axis=0) / attention.shape[0]
    mean = mean.astype(np.float32)
    edges = []
    for i in range(1, mean.shape[0]):
        if kind == "top":
            k = max(1, math.floor(value * i))
            chosen = sorted(sorted(range(i), key=lambda j, row=mean[i]: (-row[j], j))[:k])
        else:
            chosen = [j for j in range(i) if float(mean[i, j]) >= value]
        edges += [(j, i, np.float16(mean[i, j])) for j in chosen]
    return edges


def token_range(choice: Any, tokens: int, prompt_length: int) -> range:
    """Return the token positions that a loader's ``tokens=`` means for one trace."""
    if choice in ("last", "last_answer"):
        return range(tokens - 1, tokens)
    if choice == "all":
        return range(tokens)
    if choice == "answer":
        return range(prompt_length, tokens)
    if isinstance(choice, tuple):
        return range(min(choice[1], tokens))
    return range(max(tokens - choice, 0), tokens)


def head_edges(attention: Any, threshold: float) -> list[list[tuple[int, int, np.float16]]]:
    """Return the edges j -> i of every head with weight >= threshold, in order of i, then j."""
    heads = []
    for head in np.asarray(attention, np.float32):
        edges = [
            (j, i, np.float16(head[i, j]))
            for i in range(len(head))
            for j in range(i)
            if float(head[i, j]) >= threshold
        ]
        heads.append(edges)
    return heads


def sketch(attention: Any, prompt: int | None) -> Any:
    """Return float64 ``[H, T, 4]``: self-attention, Laplacian diagonal, lookback, entropy."""
    maps = np.tril(np.asarray(attention, np.float64))
    heads, tokens, _ = maps.shape
    out = np.full((heads, tokens, 4), np.nan)
    for h in range(heads):
        for i in range(tokens):
            row = maps[h, i, : i + 1]
            out[h, i, 0] = row[i]
            out[h, i, 1] = maps[h, i:, i].sum() / (tokens - i) - row[i]
            if prompt is not None and 0 < prompt <= i:
                context, fresh = row[:prompt].mean(), row[prompt:].mean()
                out[h, i, 2] = context / (context + fresh)
            kept = row[row > 0]
            out[h, i, 3] = -(kept * np.log(kept)).sum()
    return out


def union_graph(
    attentions: Any, threshold: float, prompt: int
) -> tuple[list[tuple[int, int]], Any]:
    """Return (pairs j -> i, float32 ``[E, L * H]``) over layers and heads, none in the prompt."""
    lists = [edges for layer in attentions for edges in head_edges(layer, threshold)]
    pairs = sorted({(i, j) for edges in lists for j, i, _ in edges if i >= prompt})
    attr = np.zeros((len(pairs), len(lists)), np.float32)
    for channel, edges in enumerate(lists):
        for j, i, weight in edges:
            if i >= prompt:
                attr[pairs.index((i, j)), channel] = weight
    return [(j, i) for i, j in pairs], attr
