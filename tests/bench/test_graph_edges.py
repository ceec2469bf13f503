"""Three ways to build edges, one result."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import reference

from wdsbench.bench.edges import edges_by_core, edges_by_numpy, edges_by_python
from wdsbench.bench.graphs import SHARE, causal_attention


@pytest.mark.parametrize("tokens", [1, 2, 3, 17, 64])
def test_equal_edges(tokens: int) -> None:
    maps = causal_attention(np.random.default_rng(tokens), 3, 8, tokens)
    maps[:, :, 1::3] = maps[:, :, :1]  # ties
    index, weight, pointer = edges_by_core(maps, 2)
    for build in (lambda m: edges_by_core(m, 1), edges_by_numpy, edges_by_python):
        others = build(maps)
        for ours, theirs in zip((index, weight, pointer), others, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            assert np.array_equal(ours, theirs)
    for layer, (first, last) in enumerate(pairwise(pointer.tolist())):
        edges = zip(*index[:, first:last].tolist(), weight[first:last], strict=True)
        assert list(edges) == reference.mean_edges(maps[layer], "top", SHARE)


def test_attention_is_causal_and_sums_to_one() -> None:
    maps = causal_attention(np.random.default_rng(0), 2, 3, 20)
    assert maps.dtype == np.float16
    assert not np.triu(maps, 1).any()
    assert np.abs(maps.sum(axis=-1, dtype=np.float64) - 1).max() < 2e-3
