"""How fast is attention reduced to edges? Bound by reading half of the maps once.

Part edges: one trace ``[32, 32, 64, 64]`` of float16 maps, the top 35 % of each token's
predecessors in the mean over heads. ``ours-t1`` and ``ours-t2`` are the C++; ``numpy`` processes
all layers, heads and rows at once; ``python`` loops over edges, one layer per run. ``ours-heads``
and ``ours-sketch`` (two threads) are the other reductions of packing. Rates count the bytes of
whole maps, including the halves above the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.bench.data import SEED
from wdsbench.bench.graphs import SHARE, causal_attention
from wdsbench.bench.part import THREADS, Part, Settings, measured_rates, rate_ratios
from wdsbench.bench.timing import Work

#: Threshold of per-head edges, the default of packing.
HEAD_THRESHOLD = 0.05

#: (index uint32 ``[2, E]``, weight float16 ``[E]``, pointer uint32 ``[L + 1]``).
Edges = tuple[NDArray[np.uint32], NDArray[np.float16], NDArray[np.uint32]]


@dataclass(frozen=True)
class MapShape:
    """Attention maps of one trace: layers, heads, tokens."""

    layers: int
    heads: int
    tokens: int


MAPS = MapShape(32, 32, 64)


def edges_part(settings: Settings, shape: MapShape = MAPS) -> Part:
    """Return the rates of building edges; the scale does not change the trace."""
    random = np.random.default_rng(SEED)
    maps = causal_attention(random, shape.layers, shape.heads, shape.tokens)
    results = measured_rates(_cases(maps), settings)
    return Part(
        name="edges",
        title=f"edges: maps [{shape.layers}, {shape.heads}, {shape.tokens}, {shape.tokens}],"
        f" top {SHARE:.0%} of the mean over heads",
        results=results,
        ratios=rate_ratios(results),
        unit="attention GB/s",
        baseline="numpy",
        facts={
            **asdict(shape),
            "share": SHARE,
            "head_threshold": HEAD_THRESHOLD,
            "threads": THREADS,
        },
    )


def edges_by_core(maps: NDArray[np.float16], threads: int) -> Edges:
    """Return the edges of maps ``[L, H, T, T]`` as packing computes them."""
    index, bits, pointer = _core.mean_edges(list(maps), "top", SHARE, threads=threads)
    return index, bits.view(np.float16), pointer


def edges_by_numpy(maps: NDArray[np.float16]) -> Edges:
    """Return the same edges with NumPy, all layers, heads and rows at once.

    Sorting values and comparing with the k-th is faster than sorting indices; ties with the k-th
    are kept in order until there are k.
    """
    tokens = maps.shape[-1]
    mean = maps.mean(axis=1, dtype=np.float32)
    past = np.tri(tokens, k=-1, dtype=bool)
    mean[:, ~past] = -1.0
    keep_counts = np.maximum(1, np.floor(SHARE * np.arange(tokens))).astype(np.int64)
    place = np.broadcast_to((tokens - keep_counts)[:, None], (*mean.shape[:-1], 1))
    least = np.take_along_axis(np.sort(mean, axis=-1), place, axis=-1)
    above, equal = mean > least, mean == least
    missing = keep_counts[:, None] - above.sum(axis=-1, keepdims=True)
    kept = (above | (equal & (np.cumsum(equal, axis=-1) <= missing))) & past
    layer, target, source = np.nonzero(kept)
    pointer = np.zeros(len(maps) + 1, np.uint32)
    pointer[1:] = np.cumsum(np.bincount(layer, minlength=len(maps)))
    return np.stack([source, target]).astype(np.uint32), mean[kept].astype(np.float16), pointer


def edges_by_python(maps: NDArray[np.float16]) -> Edges:
    """Return the same edges with Python loops."""
    sources: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    pointer = [0]
    for layer in maps:
        mean = layer.astype(np.float32).mean(axis=0)
        for target in range(1, len(mean)):
            row: list[float] = mean[target, :target].tolist()
            keep_count = max(1, int(SHARE * target))
            best = sorted(range(target), key=lambda source: (-row[source], source))
            for source in sorted(best[:keep_count]):
                sources.append(source)
                targets.append(target)
                weights.append(row[source])
        pointer.append(len(weights))
    index = np.array([sources, targets], np.uint32)
    return index, np.array(weights, np.float16), np.array(pointer, np.uint32)


def _cases(maps: NDArray[np.float16]) -> dict[str, Callable[[], Work]]:
    layers = list(maps)
    single = cycle(range(len(layers)))
    prompt_length = maps.shape[-1] // 2

    def trace(build: Callable[[], Any]) -> Callable[[], Work]:
        def turn() -> Work:
            build()
            return Work(1, maps.nbytes)

        return turn

    def one_layer() -> Work:
        number = next(single)
        edges_by_python(maps[number : number + 1])
        return Work(0, layers[number].nbytes, 1 / len(layers))

    return {
        "ours-t1": trace(lambda: edges_by_core(maps, 1)),
        "ours-t2": trace(lambda: edges_by_core(maps, THREADS)),
        "numpy": trace(lambda: edges_by_numpy(maps)),
        "python": one_layer,
        "ours-heads": trace(lambda: _core.head_edges(layers, HEAD_THRESHOLD, threads=THREADS)),
        "ours-sketch": trace(
            lambda: _core.sketch(layers, prompt_length=prompt_length, threads=THREADS)
        ),
    }
