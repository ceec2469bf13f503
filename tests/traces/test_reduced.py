"""Reduced attention in a raw trace: out and back unchanged; every other form is one clear error."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from traces.raw import HEADS, LAYERS, TOKENS, make_raw, numpy1_pickle

from wdsbench.errors import TraceError
from wdsbench.records import ReducedAttention
from wdsbench.traces import check
from wdsbench.traces.attention import AttentionRules, reduce_maps
from wdsbench.traces.check import check_trace
from wdsbench.traces.read import read_traces
from wdsbench.traces.reduced import reduced_to_raw
from wdsbench.traces.write import write_traces

RULES = AttentionRules(("edges", "heads", "sketch"), "top:0.5", 0.3)
REDUCED = reduce_maps(make_raw()["attentions"], RULES, prompt_length=3)


def make_reduced(**changes: Any) -> dict[str, Any]:
    """Return the raw dict; ``changes`` replace keys, None removes them. Arrays are copies."""
    raw = {
        key: value.copy() if isinstance(value, np.ndarray) else value
        for key, value in reduced_to_raw(REDUCED).items()
    }
    raw.update(changes)
    return {key: value for key, value in raw.items() if value is not None}


def checked(reduced: Any, **changes: Any) -> Any:
    changes = {"attentions": None, **changes}
    return check_trace(make_raw(reduced_attention=reduced, **changes), "a.pkl", 7)


def assert_is_reduced(found: ReducedAttention | None) -> None:
    assert found is not None
    ours, theirs = reduced_to_raw(found), reduced_to_raw(REDUCED)
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        if isinstance(value, np.ndarray):
            assert (ours[name].dtype, ours[name].shape) == (value.dtype, value.shape), name
            assert ours[name].tobytes() == value.tobytes(), name
        else:
            assert ours[name] == value, name
    assert found.num_layers == LAYERS


def test_documented_form() -> None:
    trace = checked(make_reduced())
    assert trace.attentions is None
    assert trace.remarks == ()
    assert_is_reduced(trace.reduced)
    assert checked(None).reduced is None


def test_written_and_read_back(tmp_path: Path) -> None:
    write_traces(tmp_path / "a.pkl.gz", [make_raw(reduced_attention=make_reduced())])
    (trace,) = read_traces(tmp_path / "a.pkl.gz")
    assert_is_reduced(trace.reduced)
    assert trace.attentions is not None  # a trace may hold both


def test_same_values_same_bytes(tmp_path: Path) -> None:
    """Tensors, memory order and kinds of dict do not show."""
    other = make_reduced()
    other["edges_index"] = np.asfortranarray(other["edges_index"])
    other["sketch"] = torch.from_numpy(other["sketch"])
    for name, reduced in (("a", make_reduced()), ("b", other)):
        write_traces(tmp_path / f"{name}.pkl.gz", [make_raw(reduced_attention=reduced)])
    assert (tmp_path / "a.pkl.gz").read_bytes() == (tmp_path / "b.pkl.gz").read_bytes()


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_every_protocol(protocol: int, tmp_path: Path) -> None:
    raw = make_raw(attentions=None, reduced_attention=make_reduced())
    for name, data in (
        ("a.pkl", pickle.dumps([raw], protocol)),
        ("b.pkl", numpy1_pickle([raw], protocol)),
    ):
        (tmp_path / name).write_bytes(data)
        (trace,) = read_traces(tmp_path / name)
        assert_is_reduced(trace.reduced)


def test_torch_files(tmp_path: Path) -> None:
    tensors = {
        key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for key, value in make_reduced().items()
    }
    states = torch.zeros(LAYERS, TOKENS, 4)
    raw = make_raw(
        attentions=None, hidden_states=states, token_logprobs=None, reduced_attention=tensors
    )
    torch.save([raw], tmp_path / "a.pt")
    (trace,) = read_traces(tmp_path / "a.pt")
    assert_is_reduced(trace.reduced)


def test_foreign_byte_order_and_numpy_scalars() -> None:
    reduced = make_reduced(num_heads=np.int64(HEADS), head_threshold=np.float64(0.3))
    reduced["edges_ptr"] = reduced["edges_ptr"].astype(">u4")
    reduced["heads_weight"] = reduced["heads_weight"].astype(">f2")
    assert_is_reduced(checked(reduced).reduced)


@pytest.mark.parametrize(
    ("kept", "keys"),
    [
        ("edges", {"edges_index", "edges_weight", "edges_ptr", "edge_rule"}),
        ("heads", {"heads_index", "heads_weight", "heads_ptr", "head_threshold"}),
        ("sketch", {"sketch"}),
    ],
)
def test_one_kind_alone(kept: str, keys: set[str]) -> None:
    raw = make_reduced()
    reduced = checked({key: raw[key] for key in keys | {"num_heads"}}).reduced
    found = {name for name in ("edges", "heads", "sketch") if getattr(reduced, name) is not None}
    assert found == {kept}
    assert reduced.num_layers == LAYERS


def test_no_edges_at_all() -> None:
    empty = make_reduced(
        edges_index=np.empty((2, 0), np.uint8),
        edges_weight=np.empty(0, np.float16),
        edges_ptr=np.zeros(LAYERS + 1, np.uint32),
    )
    assert checked(empty).reduced.edges.weight.size == 0


def test_one_state_more_is_the_embedding() -> None:
    """As with maps: L + 1 hidden states and L layers of attention."""
    states = np.arange((LAYERS + 1) * TOKENS * 4, dtype=np.float32).reshape(-1, TOKENS, 4)
    trace = checked(make_reduced(), hidden_states=states)
    assert trace.remarks == (check.REMARK_EMBEDDING_STATE,)
    assert np.array_equal(trace.hidden, states[1:])


def changed(name: str, place: Any, value: Any) -> dict[str, Any]:
    reduced = make_reduced()
    reduced[name][place] = value
    return reduced


def swapped() -> dict[str, Any]:
    """Return edges of which two, in layer 1, are in the wrong order."""
    reduced = make_reduced()
    first = int(reduced["edges_ptr"][1])
    reduced["edges_index"][:, [first, first + 1]] = reduced["edges_index"][:, [first + 1, first]]
    return reduced


def doubled() -> dict[str, Any]:
    """Return heads of which the last list has its last edge twice."""
    reduced = make_reduced()
    reduced["heads_index"][:, -2] = reduced["heads_index"][:, -1]
    return reduced


def fallen() -> dict[str, Any]:
    reduced = make_reduced()
    reduced["edges_ptr"][2] = 0
    return reduced


LAST = LAYERS - 1
EDGE_COUNT = int(REDUCED.edges.pointer[-1])  # type: ignore[union-attr]

# (how it is broken, the dict, words of the error)
BROKEN: list[tuple[str, Any, str]] = [
    ("a list", [1], "is a list; expected a dict"),
    ("empty", {}, "num_heads is None; expected an integer of at least 1"),
    ("no kind", {"num_heads": 2}, "holds none of edges_index, heads_index, sketch"),
    ("heads 0", make_reduced(num_heads=0), "num_heads is 0"),
    ("heads True", make_reduced(num_heads=True), "num_heads is True"),
    ("heads text", make_reduced(num_heads="2"), "num_heads is '2'"),
    ("heads array", make_reduced(num_heads=np.ones((3, 3))), "num_heads is an array of shape"),
    (
        "no weight",
        make_reduced(edges_weight=None),
        "lacks edges_weight; expected all of edges_index",
    ),
    (
        "no pointer",
        make_reduced(heads_ptr=None),
        "lacks heads_ptr; expected all of heads_index, heads",
    ),
    ("no rule", make_reduced(edge_rule=None), "edge_rule of edges is None; expected"),
    ("rule a number", make_reduced(edge_rule=0.35), "edge_rule of edges is 0.35"),
    ("rule unknown", make_reduced(edge_rule="best:3"), "edge rule 'best:3' is not top:SHARE"),
    ("no threshold", make_reduced(head_threshold=None), "head_threshold of heads is None"),
    ("threshold 2", make_reduced(head_threshold=2.0), "head_threshold of heads is 2.0"),
    ("threshold NaN", make_reduced(head_threshold=np.nan), "head_threshold of heads is nan"),
    ("threshold text", make_reduced(head_threshold="0.1"), "head_threshold of heads is '0.1'"),
    (
        "signed index",
        make_reduced(edges_index=make_reduced()["edges_index"].astype(np.int64)),
        "edges_index: dtype is '<i8', expected an unsigned type of 1, 2 or 4 bytes",
    ),
    (
        "float32 weight",
        make_reduced(heads_weight=make_reduced()["heads_weight"].astype(np.float32)),
        "heads_weight: dtype is '<f4', expected '<f2'",
    ),
    (
        "int64 pointer",
        make_reduced(edges_ptr=make_reduced()["edges_ptr"].astype(np.int64)),
        "edges_ptr: dtype is '<i8', expected '<u4'",
    ),
    (
        "float32 sketch",
        make_reduced(sketch=make_reduced()["sketch"].astype(np.float32)),
        "sketch has dtype float32; expected float16",
    ),
    ("ragged", make_reduced(sketch=[[1.0], [1.0, 2.0]]), "sketch cannot be read as one array"),
    (
        "transposed index",
        make_reduced(edges_index=make_reduced()["edges_index"].T),
        f"edges_index: shape ({EDGE_COUNT}, 2), expected (2, {EDGE_COUNT}) as the pointer says",
    ),
    (
        "weights of another number",
        make_reduced(edges_weight=make_reduced()["edges_weight"][1:]),
        f"edges_weight: shape ({EDGE_COUNT - 1},), expected ({EDGE_COUNT},) as the pointer says",
    ),
    (
        "pointer of heads cut",
        make_reduced(heads_ptr=make_reduced()["heads_ptr"][:-1]),
        f"heads_ptr has shape ({LAYERS * HEADS},); expected [layers * {HEADS} + 1]",
    ),
    (
        "pointer of no list",
        make_reduced(edges_ptr=np.zeros(1, np.uint32)),
        "edges_ptr has shape (1,); expected [layers + 1]",
    ),
    (
        "pointer of two axes",
        make_reduced(edges_ptr=make_reduced()["edges_ptr"][None]),
        "edges_ptr has shape (1, 4); expected [layers + 1]",
    ),
    (
        "pointer starts at 1",
        changed("edges_ptr", 0, 1),
        "edges_ptr: pointer 0 is 1",
    ),
    ("pointer ends early", changed("edges_ptr", -1, 3), "edges_ptr: pointer 3 is 3; pointers"),
    ("pointer falls", fallen(), "edges_ptr: pointer 2 is 0; pointers start at 0 and never fall"),
    (
        "other layers",
        make_reduced(sketch=make_reduced()["sketch"][1:]),
        f"holds edges of {LAYERS} layers, heads of {LAYERS} layers, sketch of {LAYERS - 1} layers",
    ),
    ("target T", changed("edges_index", (1, -1), TOKENS), f"edges_index: layer {LAST}: edge"),
    ("self-loop", changed("edges_index", (0, 0), 1), "edges_index: layer 0: edge 1 -> 1 of"),
    ("disorder", swapped(), "edges_index: layer 1: edge"),
    ("an edge twice", doubled(), f"heads_index: layer {LAST}, head {HEADS - 1}: edge"),
    (
        "NaN weight",
        changed("edges_weight", 0, np.nan),
        "layer 0: the weight of edge 0 -> 1 is nan",
    ),
    (
        "infinite weight",
        changed("heads_weight", -1, np.inf),
        "heads_weight: layer 2, head 1: the weight",
    ),
    (
        "weight 1.02",
        changed("edges_weight", 1, 1.02),
        "is 1.01953; attention weights are",
    ),
    (
        "weight below 0",
        changed("edges_weight", -1, -0.25),
        f"layer {LAST}: the weight of",
    ),
    (
        "sketch of other tokens",
        make_reduced(sketch=make_reduced()["sketch"][:, :, 1:]),
        f"expected [layers, {HEADS}, {TOKENS}, 4] for {HEADS} heads and {TOKENS} tokens",
    ),
    ("sketch of no layer", make_reduced(sketch=np.empty((0, 2, 5, 4), np.float16)), "sketch has"),
    (
        "infinite sketch",
        changed("sketch", (1, 0, 2, 2), np.inf),
        "layer 1: the sketch of head 0, token 2 is",
    ),
    (
        "NaN sketch",
        changed("sketch", (2, 1, 0, 3), np.nan),
        "layer 2: the sketch of head 1, token 0 is",
    ),
]


@pytest.mark.parametrize(
    ("reduced", "words"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_broken_forms(reduced: Any, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        checked(reduced)
    assert str(caught.value).startswith("file a.pkl, trace 7, question q0: reduced_attention")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith("..")


def test_layers_of_everything_agree() -> None:
    maps = make_raw()["attentions"]
    with pytest.raises(TraceError, match="reduced_attention has 3 layers, attentions 2;"):
        checked(make_reduced(), attentions=maps[:2])
    states = np.zeros((LAYERS + 2, TOKENS, 4), np.float16)
    with pytest.raises(TraceError, match="hidden_states has 5 layers, attentions 3;"):
        checked(make_reduced(), hidden_states=states)
