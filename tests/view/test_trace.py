"""One trace from either source: the same weights, norms and edges, and what is not kept by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_dataset, make_raw, write_pickle
from view.samples import HEADS, HOSTILE, LAYERS, mean_map, raw_file, raw_trace, stored_trace

from wdsbench.errors import ShardError, TraceError
from wdsbench.pack import PackOptions, pack
from wdsbench.traces.attention import AttentionRules, as_maps, reduce_maps
from wdsbench.traces.reduced import reduced_to_raw
from wdsbench.traces.write import write_traces
from wdsbench.view.source import open_trace
from wdsbench.view.trace import visible


def packed_file(path: Path) -> Path:
    """Pack one raw file; return the data set's folder."""
    pack([str(path)], path.parent / "out", options=PackOptions())
    return path.parent / "out"


@pytest.mark.parametrize("attention", ["full", "full,edges,heads,sketch"])
def test_whole_maps_of_a_store(tmp_path: Path, attention: str) -> None:
    trace, raw = stored_trace(tmp_path, attention)
    assert (trace.num_layers, trace.num_heads) == (LAYERS, HEADS)
    assert trace.texts == raw["tokens_decoded"]
    assert (trace.prompt_length, trace.answer) == (raw["prompt_length"], "an answer")
    assert trace.remarks() == []
    for layer in range(LAYERS):
        np.testing.assert_allclose(trace.square(layer), mean_map(raw, layer), atol=1e-3)
        for head in range(HEADS):
            wanted = np.asarray(raw["attentions"][layer][head], np.float32)
            lower = np.tril_indices(len(wanted))
            np.testing.assert_array_equal(trace.square(layer, head)[lower], wanted[lower])
    norms = np.linalg.norm(np.asarray(raw["hidden_states"], np.float64), axis=-1)
    np.testing.assert_allclose(trace.norms, norms, rtol=1e-6)


def test_a_raw_file_and_a_store_of_it_are_the_same(tmp_path: Path) -> None:
    trace, raw = stored_trace(tmp_path, "full,edges,heads,sketch")
    other, index = open_trace(write_pickle(tmp_path / "one.pkl", [raw]))
    assert index is None
    for layer in range(LAYERS):
        for head in (None, 0, 1):
            np.testing.assert_array_equal(other.half(layer, head), trace.half(layer, head))
            mine, theirs = other.edges(layer, head), trace.edges(layer, head)
            np.testing.assert_array_equal(mine.index, theirs.index)
            np.testing.assert_array_equal(mine.weight, theirs.weight)
            assert other.edge_rule(head) == trace.edge_rule(head)
    np.testing.assert_array_equal(other.sketch, trace.sketch)
    np.testing.assert_array_equal(other.norms, trace.norms)


def test_edges_alone_are_a_map_with_holes(tmp_path: Path) -> None:
    trace, raw = stored_trace(tmp_path, "edges,sketch")
    assert trace.num_heads == 0
    assert trace.edge_rule() == "edges top:0.35"
    (remark,) = trace.remarks()
    assert "repack with --attention full" in remark
    for layer in range(LAYERS):
        square, whole = trace.square(layer), mean_map(raw, layer)
        kept = ~np.isnan(square)
        np.testing.assert_allclose(square[kept], whole[kept], atol=1e-3)
        edges = trace.edges(layer)
        assert kept.sum() == edges.weight.size + trace.num_tokens  # and the diagonal
        assert kept[edges.index[1], edges.index[0]].all()
    with pytest.raises(ShardError, match="single heads are not kept; repack with --attention head"):
        trace.half(0, 1)


def test_heads_alone(tmp_path: Path) -> None:
    trace, raw = stored_trace(tmp_path, "heads")
    assert trace.num_heads == HEADS
    assert trace.edge_rule() == "weights from 0.05"
    whole = np.asarray(raw["attentions"], np.float32)
    tokens = np.arange(trace.num_tokens)
    wanted = np.where((whole >= 0.05) & (tokens[:, None] > tokens), whole, 0)
    for layer in range(LAYERS):
        np.testing.assert_allclose(np.nan_to_num(trace.square(layer, 1)), wanted[layer, 1])
        mean = np.nan_to_num(trace.square(layer))
        np.testing.assert_allclose(mean, wanted[layer].mean(axis=0), atol=1e-6)
        assert trace.edges(layer, 0).weight.size == (wanted[layer, 0] > 0).sum()


def test_no_attention_kept(tmp_path: Path) -> None:
    trace, _ = stored_trace(tmp_path, "")
    assert not trace.has_attention
    assert trace.remarks() == ["no attention between tokens is kept: repack with --attention full"]
    with pytest.raises(ShardError, match="repack with --attention full") as caught:
        trace.half(0)
    assert caught.value.shard is not None


def test_a_raw_trace_without_maps_is_to_be_extracted_again(tmp_path: Path) -> None:
    trace = raw_trace(tmp_path, attentions=None)
    with pytest.raises(TraceError, match="extract again with --attention full"):
        trace.half(0)


def test_reduced_raw_traces(tmp_path: Path) -> None:
    raw = make_raw("q", seed=3, tokens=9)
    rules = AttentionRules(("edges", "heads", "sketch"), "top:0.5", 0.1)
    reduced = reduce_maps(as_maps(raw.pop("attentions")), rules, prompt_length=4)
    path = write_pickle(tmp_path / "a.pkl", [{**raw, "reduced_attention": reduced_to_raw(reduced)}])
    trace, _ = open_trace(path)
    assert trace.full is None
    assert (trace.edge_rule(), trace.edge_rule(0)) == ("edges top:0.5", "weights from 0.1")
    assert reduced.edges is not None
    first, last = reduced.edges.pointer[1:3]
    np.testing.assert_array_equal(trace.edges(1).weight, reduced.edges.weight[first:last])
    np.testing.assert_array_equal(trace.sketch, reduced.sketch)
    assert "extract again with --attention full" in trace.remarks()[0]


def test_states_of_the_last_token_alone(tmp_path: Path) -> None:
    states = make_raw("q", seed=1, tokens=len(HOSTILE))["hidden_states"]
    trace = raw_trace(tmp_path, hidden_states=[layer[-1:] for layer in states])
    assert trace.norms.shape == (LAYERS, 1)
    assert trace.num_tokens == len(HOSTILE)


@pytest.mark.parametrize("stored", [False, True])
def test_states_of_the_answer_alone(tmp_path: Path, stored: bool) -> None:
    whole = raw_trace(tmp_path)
    states = make_raw("q<1>", seed=1, tokens=len(HOSTILE))["hidden_states"]
    path = raw_file(
        tmp_path, hidden_states=[layer[6:] for layer in states], states_of="answer", label=1
    )
    trace, _ = open_trace(packed_file(path) if stored else path)
    assert trace.state_tokens.tolist() == list(range(6, len(HOSTILE)))
    np.testing.assert_array_equal(trace.norms, whole.norms[:, 6:])
    assert whole.state_tokens.tolist() == list(range(len(HOSTILE)))


@pytest.mark.parametrize("stored", [False, True])
def test_layers_are_called_what_the_model_calls_them(tmp_path: Path, stored: bool) -> None:
    path = raw_file(tmp_path, layers=[0, 15, 31], label=1)
    trace, _ = open_trace(packed_file(path) if stored else path)
    assert trace.layer_names == (0, 15, 31)
    assert "3 layers (0, 15, 31 of the model)" in trace.described
    whole = raw_trace(tmp_path)
    assert whole.layer_names == (0, 1, 2)
    assert "of the model" not in whole.described


def test_unknown_prompt_length_and_texts(tmp_path: Path) -> None:
    trace = raw_trace(tmp_path, prompt_length=None, token_logprobs=None, tokens_decoded=None)
    assert trace.prompt_length is None
    assert "length of the prompt unknown" in trace.described
    assert all(text.startswith("#") for text in trace.texts)


def test_states_beyond_float16_come_back(tmp_path: Path) -> None:
    raw = make_raw("q", seed=1, tokens=5, dtype=np.float32)
    raw["hidden_states"][1] *= 1e6
    packed = tmp_path / "out"
    write_pickle(tmp_path / "a.pkl", [{**raw, "label": 1}])
    pack([str(tmp_path / "a.pkl")], packed, options=PackOptions())
    trace, _ = open_trace(packed)
    wanted = np.linalg.norm(np.stack(raw["hidden_states"]).astype(np.float64), axis=-1)
    np.testing.assert_allclose(trace.norms, wanted, rtol=1e-3)


def test_choosing_a_trace(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=12)
    _, index = open_trace(packed.folder)
    assert index is not None
    for row in (0, 5, 11):
        names = {"trace": row, "sample": index.key(row), "question": index.question_id(row)}
        for name, value in names.items():
            trace, _ = open_trace(packed.folder, **{name: value})  # type: ignore[arg-type]
            assert trace.name == f"question {index.question_id(row)}"
            assert trace.slug == index.key(row)
    raw = tmp_path / "traces_data" / "batch_0002.pkl"
    by_place, _ = open_trace(raw, trace=2)
    by_question, _ = open_trace(raw, question="q/8.é")
    assert by_place.name == by_question.name == "question q/8.é"
    assert by_place.slug == "batch_0002-2"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"trace": 12}, "holds 12 traces, 0 to 11"),
        ({"question": "none"}, "not among the 12 traces"),
        ({"sample": "none"}, "not among the 12 traces"),
    ],
)
def test_a_trace_that_is_not_there(tmp_path: Path, wanted: dict[str, str], said: str) -> None:
    packed = make_dataset(tmp_path, traces=12)
    with pytest.raises(ValueError, match=said):
        open_trace(packed.folder, **wanted)  # type: ignore[arg-type]


def test_a_raw_trace_that_is_not_there(tmp_path: Path) -> None:
    path = raw_file(tmp_path)
    with pytest.raises(ValueError, match="no such trace among its 1; --trace is 0 to 0"):
        open_trace(path, trace=1)
    with pytest.raises(ValueError, match=r"--question x: .* no such trace"):
        open_trace(path, question="x")
    with pytest.raises(ValueError, match="traces have no key"):
        open_trace(path, sample="x")


@pytest.mark.parametrize("name", ["a.pkl", "a.npz"])
def test_a_bad_trace_hides_no_other(tmp_path: Path, name: str) -> None:
    raws = [make_raw(f"q{number}", seed=number, tokens=4) for number in range(4)]
    raws[1]["hidden_states"][0][2] = np.nan
    path = tmp_path / name
    write_traces(path, raws)
    for wanted in ({"trace": 3}, {"question": "q3"}):
        assert open_trace(path, **wanted)[0].name == "question q3"
        assert open_trace(path, **wanted)[0].source == f"{name}, trace 3"
    for wanted in ({"trace": 1}, {"question": "q1"}):
        with pytest.raises(TraceError, match="trace 1, question q1: hidden_states, layer 0, holds"):
            open_trace(path, **wanted)
    with pytest.raises(ValueError, match=r"among its 4; --trace is 0 to 3$"):
        open_trace(path, question="q4")


def test_traces_without_a_name_are_told_where_a_question_is_not_found(tmp_path: Path) -> None:
    raws: list[object] = [make_raw(f"q{number}", seed=number, tokens=4) for number in range(4)]
    raws[0], raws[2] = {"question_id": 1.5}, "no trace"
    path = write_pickle(tmp_path / "a.pkl", raws)
    assert open_trace(path, question="q3")[0].name == "question q3"
    with pytest.raises(ValueError, match="its 4; 2 of them have no question id that can be read; "):
        open_trace(path, question="q4")
    with pytest.raises(ValueError, match=r"among its 4; --trace is 0 to 3$"):
        open_trace(path, trace=4)


def test_a_preprocessed_file_with_a_bad_trace(tmp_path: Path) -> None:
    sequences = torch.ones(3, 2, 4)
    sequences[0, 1, 1] = torch.nan
    content = {"sequences": sequences, "question_ids": ["a", "b", "c"], "labels": [0, 1, 1]}
    torch.save(content, tmp_path / "a.pt")
    for wanted in ({"trace": 2}, {"question": "c"}):
        assert open_trace(tmp_path / "a.pt", **wanted)[0].source == "a.pt, trace 2"
    with pytest.raises(TraceError, match=r"trace 0, question a: .* holds NaN"):
        open_trace(tmp_path / "a.pt")


def test_a_file_is_read_up_to_the_trace_and_no_further(tmp_path: Path) -> None:
    """Two pickles in one file, the second cut short."""
    first, second = (
        write_pickle(tmp_path / f"{number}.pkl", [make_raw(f"q{number}", seed=number)])
        for number in range(2)
    )
    (tmp_path / "a.pkl").write_bytes(first.read_bytes() + second.read_bytes()[:-20])
    assert open_trace(tmp_path / "a.pkl")[0].name == "question q0"
    for wanted in ({"trace": 1}, {"question": "q1"}):
        with pytest.raises(TraceError, match=r"a\.pkl: "):
            open_trace(tmp_path / "a.pkl", **wanted)
    write_pickle(tmp_path / "none.pkl", [])
    with pytest.raises(TraceError, match="holds no traces"):
        open_trace(tmp_path / "none.pkl")


def test_one_way_to_name_a_trace() -> None:
    with pytest.raises(ValueError, match="--trace and --question: give one of them"):
        open_trace("unused", trace=0, question="q")
    with pytest.raises(ValueError, match="count from 0"):
        open_trace("unused", trace=-1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the", "the"),
        (" the", "␣the"),
        ("a b", "a b"),
        ("\n", "⏎"),
        ("\t\r\n", "⇥␍⏎"),
        ("", "(empty)"),
        ("  ", "␣␣"),
        ("<b>", "<b>"),
        ("\x00\u202e", "\ufffd\ufffd"),
        ("abcdefgh", "abcd…"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text, most=5 if len(text) > 7 else None) == shown
