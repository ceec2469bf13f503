"""Principal components of the states of each layer, fitted on training samples.

This takes one more pass over the raw files; memory is one block of tokens and ``k`` components a
layer. The components are stored with the data set (``reduction-<xxh3>.safetensors``: ``mean``
float32 ``[L, D]``, ``components`` ``[L, k, D]``, ``explained`` ``[L]``), so that other traces can
be mapped into the same space.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench.errors import PackError, TraceError
from wdsbench.records import Trace

#: Tokens of a layer fitted at a time; at least the number of components.
BLOCK_TOKENS = 1024


@dataclass(frozen=True)
class Reduction:
    """An affine map for each layer, from D features to k.

    Attributes:
        mean: float32 ``[L, D]``.
        components: float32 ``[L, k, D]``, rows of unit length.
        explained: float32 ``[L]``: kept share of the variance of the training tokens.
    """

    mean: NDArray[np.float32]
    components: NDArray[np.float32]
    explained: NDArray[np.float32]

    def apply(self, hidden: NDArray[Any]) -> NDArray[np.float32]:
        """Return states ``[L, T, k]`` of states ``[L, T, D]``."""
        centred = hidden.astype(np.float32) - self.mean[:, None, :]
        return np.ascontiguousarray(centred @ self.components.transpose(0, 2, 1))

    def file(self) -> tuple[str, bytes]:
        """Return name and content of its file."""
        from safetensors.numpy import save

        data = save({"mean": self.mean, "components": self.components, "explained": self.explained})
        return f"reduction-{xxhash.xxh3_64_hexdigest(data)}.safetensors", data


def load_reduction(path: Path) -> Reduction:
    """Return the reduction in a file of `Reduction.file`; PackError if it is missing or damaged."""
    from safetensors.numpy import load

    try:
        data = path.read_bytes()
    except OSError as error:
        raise PackError(f"cannot read {path}: {error.strerror}; pack again") from error
    if path.name != f"reduction-{xxhash.xxh3_64_hexdigest(data)}.safetensors":
        raise PackError(f"{path} was changed since it was written (XXH3); pack again")
    return Reduction(**load(data))


def parse_reduce(text: str | None) -> int | None:
    """Return k of ``"pca:K"``, None of None; ValueError for another text."""
    if text is None:
        return None
    kind, _, size = text.partition(":")
    if kind != "pca" or not size.isdecimal() or int(size) < 1:
        raise ValueError(f"reduce: {text!r} is not pca:K with K of at least 1")
    return int(size)


def fit_reduction(traces: Iterable[Trace], size: int) -> Reduction:
    """Return the first ``size`` principal components of every layer over all tokens of ``traces``.

    PackError: There are fewer tokens or features. TraceError: A state is not finite, or traces
    differ in layers or features.
    """
    from sklearn.decomposition import IncrementalPCA

    models: list[Any] = []
    blocks: list[NDArray[np.float32]] = []
    waiting = 0
    block = max(BLOCK_TOKENS, size)
    shape: tuple[int, int] | None = None
    for trace in traces:
        layers, tokens, features = trace.hidden.shape
        if shape is None:
            shape = (layers, features)
            if size > features:
                raise PackError(f"reduce: {size} components of {features} features; ask for fewer")
            models = [IncrementalPCA(n_components=size) for _ in range(layers)]
        if shape != (layers, features):
            raise TraceError.at(
                trace, f"{layers} layers of {features} features, others have {shape}"
            )
        if not np.isfinite(trace.hidden).all():
            raise TraceError.at(trace, "a state is not finite; components cannot be fitted on it")
        blocks.append(trace.hidden.astype(np.float32))
        waiting += tokens
        if waiting >= 2 * block:  # the rest must be large enough to be fitted itself
            blocks = [_fit(models, np.concatenate(blocks, axis=1), block)]
            waiting = blocks[0].shape[1]
    if waiting < size:
        raise PackError(
            f"reduce: {size} components need at least {size} training tokens, found {waiting}"
        )
    joined = np.concatenate(blocks, axis=1)
    _fit(models, joined, joined.shape[1])
    # safetensors writes memory as it is: C order.
    return Reduction(
        np.ascontiguousarray([model.mean_ for model in models], np.float32),
        np.ascontiguousarray([model.components_ for model in models], np.float32),
        np.array([model.explained_variance_ratio_.sum() for model in models], np.float32),
    )


def _fit(models: list[Any], states: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Fit the first ``count`` tokens of ``states`` ``[L, T, D]``; return the rest."""
    for model, layer in zip(models, states, strict=True):
        model.partial_fit(layer[:count].astype(np.float64))
    return states[:, count:]
