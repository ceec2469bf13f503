"""Maps reduced layer by layer and joined are maps reduced at once; what is no map is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wdsbench.records import EdgeLists, ReducedAttention
from wdsbench.traces.attention import AttentionRules, EdgeRule, MapError, join_layers, reduce_maps

ALL = AttentionRules(("edges", "heads", "sketch"), "top:0.4", 0.1)


def make_maps(tokens: int, layers: int = 3, heads: int = 2, dtype: Any = np.float16) -> list[Any]:
    weights = np.tril(np.random.default_rng(tokens).random((layers, heads, tokens, tokens)) + 1e-3)
    return list((weights / weights.sum(axis=-1, keepdims=True)).astype(dtype))


def assert_equal(ours: ReducedAttention, theirs: ReducedAttention) -> None:
    assert (ours.num_layers, ours.num_heads) == (theirs.num_layers, theirs.num_heads)
    assert (ours.edge_rule, ours.head_threshold) == (theirs.edge_rule, theirs.head_threshold)
    for mine, other in ((ours.edges, theirs.edges), (ours.heads, theirs.heads)):
        assert mine is not None
        assert other is not None
        for name in ("index", "weight", "pointer"):
            first, second = getattr(mine, name), getattr(other, name)
            assert (first.dtype, first.shape) == (second.dtype, second.shape)
            assert first.tobytes() == second.tobytes()
    assert ours.sketch is not None
    assert theirs.sketch is not None
    assert ours.sketch.shape == theirs.sketch.shape
    assert ours.sketch.tobytes() == theirs.sketch.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("tokens", [1, 2, 17])
def test_layer_by_layer_equals_all_at_once(tokens: int, dtype: Any) -> None:
    maps = make_maps(tokens, dtype=dtype)
    parts = [reduce_maps([layer], ALL, prompt_length=1) for layer in maps]
    assert_equal(join_layers(parts), reduce_maps(maps, ALL, prompt_length=1, threads=2))


@pytest.mark.parametrize(("tokens", "dtype"), [(256, np.uint8), (257, np.uint16)])
def test_indices_are_no_wider_than_needed(tokens: int, dtype: Any) -> None:
    maps = make_maps(tokens, layers=1, heads=1)
    edges = reduce_maps(maps, AttentionRules(("edges",)), prompt_length=None).edges
    assert edges is not None
    assert edges.index.dtype == dtype
    assert edges.index[1].max() == tokens - 1


def test_only_what_is_asked_for_is_made() -> None:
    for kind in ("edges", "heads", "sketch"):
        reduced = reduce_maps(make_maps(5), AttentionRules(("full", kind)), prompt_length=None)
        made = {name for name in ("edges", "heads", "sketch") if getattr(reduced, name) is not None}
        assert made == {kind}
        assert (reduced.edge_rule is not None) == (kind == "edges")
        assert (reduced.head_threshold is not None) == (kind == "heads")


@pytest.mark.parametrize("kind", ["edges", "heads", "sketch"])
def test_a_weight_that_is_not_finite_is_named_by_layer(kind: str) -> None:
    maps = make_maps(5)
    maps[1][1, 3, 2] = np.nan
    with pytest.raises(MapError, match=r"^layer 8: attention of head 1, token 3 to token 2 is not"):
        reduce_maps(maps, AttentionRules((kind,)), prompt_length=None, first_layer=7)


@pytest.mark.parametrize("kind", ["edges", "heads"])
def test_a_weight_that_is_no_probability_is_named_by_layer(kind: str) -> None:
    maps = make_maps(5)
    maps[2] = maps[2] * np.float16(3)
    with pytest.raises(MapError, match=r"^layer 9.*: the weight of edge .*the scores"):
        reduce_maps(maps, AttentionRules((kind,)), prompt_length=None, first_layer=7)


def test_parts_of_different_heads_do_not_join() -> None:
    parts = [reduce_maps(make_maps(4, heads=h), ALL, prompt_length=None) for h in (2, 3)]
    with pytest.raises(MapError, match="layers have 2 and 3 heads"):
        join_layers(parts)


def test_more_edges_than_a_pointer_counts_are_refused() -> None:
    """Pointers that say so are enough: the check comes before anything is joined."""
    pointer = np.array([0, 2**31], np.uint32)
    huge = EdgeLists(np.empty((2, 0), np.uint8), np.empty(0, np.float16), pointer)
    with pytest.raises(MapError, match=r"one trace has 4294967296 edges.*keep fewer"):
        join_layers([ReducedAttention(1, 1, edges=huge, edge_rule="top:1")] * 2)


@pytest.mark.parametrize("text", ["top", "top:", "top:2", "top:-0.1", "top:nan", "best:0.1", ""])
def test_edge_rules_have_a_vocabulary(text: str) -> None:
    with pytest.raises(ValueError, match="is not top:SHARE or threshold:WEIGHT"):
        EdgeRule.parse(text)


def test_one_rule_spelled_in_two_ways_is_one_rule() -> None:
    assert EdgeRule.parse("top:0.350") == EdgeRule.parse("top:.35") != EdgeRule.parse("top:0.3501")
