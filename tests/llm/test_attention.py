"""Maps of any architecture are collected layer by layer and reduced at once."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from llm.tiny import HEADS, LAYERS, MODELS, extract, make_model, make_questions, make_tokenizer

from wdsbench.cli.main import main
from wdsbench.errors import ModelError
from wdsbench.llm.attention import _SHARED_BYTES, BatchMaps
from wdsbench.records import Trace
from wdsbench.traces.attention import AttentionRules, reduce_maps
from wdsbench.traces.files import expand_patterns, open_raw
from wdsbench.traces.read import read_traces
from wdsbench.traces.reduced import reduced_to_raw
from wdsbench.traces.unpickle import load_pickle

REDUCED = ("edges", "heads", "sketch")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


def read_all(folder: Path) -> list[Trace]:
    return [trace for path in expand_patterns([folder]) for trace in read_traces(path)]


def our_hooks(model: Any) -> int:
    """Count our hooks; transformers has its own."""
    hooks = [hook for module in model.modules() for hook in module._forward_hooks.values()]
    return sum(isinstance(getattr(hook, "__self__", None), BatchMaps) for hook in hooks)


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_equals_the_slow_reference(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    """``full`` keeps the maps of the same pass."""
    extract(
        MODELS[kind](),
        tokenizer,
        make_questions(7),
        tmp_path,
        batch_size=4,
        attention=("full", *REDUCED),
        edge_rule="top:0.5",
        head_threshold=0.2,
    )
    traces = read_all(tmp_path)
    assert len({len(trace.tokens) for trace in traces}) > 3  # otherwise nothing was padded
    for trace in traces:
        reduced, maps = trace.reduced, trace.attentions
        assert reduced is not None
        assert maps is not None
        assert (reduced.num_layers, reduced.num_heads) == (LAYERS, HEADS)
        assert (reduced.edge_rule, reduced.head_threshold) == ("top:0.5", 0.2)
        assert reduced.edges is not None
        assert reduced.heads is not None
        assert reduced.sketch is not None
        expected = {
            "edges": [reference.mean_edges(layer, "top", 0.5) for layer in maps],
            "heads": [edges for layer in maps for edges in reference.head_edges(layer, 0.2)],
        }
        for name, lists in (("edges", reduced.edges), ("heads", reduced.heads)):
            assert len(lists.pointer) == len(expected[name]) + 1
            for number, edges in enumerate(expected[name]):
                own = slice(lists.pointer[number], lists.pointer[number + 1])
                found = zip(*lists.index[:, own].tolist(), lists.weight[own], strict=True)
                assert list(found) == edges
        for layer, values in zip(maps, reduced.sketch, strict=True):
            slow = reference.sketch(layer, trace.prompt_length)
            np.testing.assert_allclose(values, slow, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("attention", "keys"),
    [
        (("full",), None),
        ((), None),
        (("edges",), {"edges_index", "edges_weight", "edges_ptr", "edge_rule"}),
        (("heads",), {"heads_index", "heads_weight", "heads_ptr", "head_threshold"}),
        (("full", "sketch"), {"sketch"}),
    ],
)
def test_raw_format(
    attention: tuple[str, ...], keys: set[str] | None, tokenizer: Any, tmp_path: Path
) -> None:
    extract(make_model(), tokenizer, make_questions(1), tmp_path, attention=attention)
    with open_raw(tmp_path / "batch_0001.pkl.gz") as stream:
        (raw,) = load_pickle(stream)  # type: ignore[misc]
    assert ("attentions" in raw) == ("full" in attention)
    assert ("reduced_attention" in raw) == (keys is not None)
    if keys is not None:
        reduced = raw["reduced_attention"]
        assert set(reduced) == keys | {"num_heads"}
        assert reduced["num_heads"] == HEADS
        kinds = {name: value.dtype for name, value in reduced.items() if hasattr(value, "dtype")}
        wanted = {"index": np.uint8, "weight": np.float16, "ptr": np.uint32, "sketch": np.float16}
        assert kinds == {name: wanted[name.split("_")[-1]] for name in kinds}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("attention", [("full",), REDUCED])
def test_weights_of_one_layer_at_most_are_held(
    kind: str, attention: tuple[str, ...], tokenizer: Any, tmp_path: Path
) -> None:
    """Counted when the next layer's weights appear, and at the end of the pass."""
    model = MODELS[kind]()
    weights: list[Any] = []
    most: list[int] = []

    def count(*_: Any) -> None:
        most.append(sum(found() is not None for found in weights))

    def watch(module: Any, inputs: Any, output: Any) -> None:
        count(module, inputs)
        weights.append(weakref.ref(output[1]))

    for module in model.modules():
        if type(module).__name__ in ("LlamaAttention", "GPT2Attention"):
            module.register_forward_hook(watch)
    model.lm_head.register_forward_hook(count)
    extract(model, tokenizer, make_questions(4), tmp_path, max_new_tokens=2, attention=attention)
    assert len(weights) >= LAYERS * 2  # generation and the pass behind it
    assert max(most) <= 1


def test_without_attention(tokenizer: Any, tmp_path: Path) -> None:
    """Also of a model that returns none."""
    model = make_model()
    model.set_attn_implementation("sdpa")
    extract(model, tokenizer, make_questions(3), tmp_path, attention=())
    traces = read_all(tmp_path)
    assert [(trace.attentions, trace.reduced) for trace in traces] == [(None, None)] * 3


@pytest.mark.parametrize("attention", [("full",), REDUCED])
def test_attention_that_is_not_returned_is_an_error(
    attention: tuple[str, ...], tokenizer: Any, tmp_path: Path
) -> None:
    model = make_model()
    model.set_attn_implementation("sdpa")
    words = "3 layers of states, but 0 attention maps; .*eager.*--attention none"
    with pytest.raises(ModelError, match=words):
        extract(model, tokenizer, make_questions(3), tmp_path, attention=attention)
    assert list(tmp_path.iterdir()) == []
    assert our_hooks(model) == 0


def test_a_layer_without_attention_is_an_error(tokenizer: Any, tmp_path: Path) -> None:
    model = make_model()
    module = model.model.layers[1].self_attn
    module.register_forward_hook(lambda _module, _inputs, output: (output[0], None))
    words = r"3 layers of states, but 2 attention maps \(of LlamaAttention\)"
    with pytest.raises(ModelError, match=words):
        extract(model, tokenizer, make_questions(3), tmp_path)


def test_weights_that_are_not_finite_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    model = make_model()
    module = model.model.layers[2].self_attn
    module.register_forward_hook(
        lambda _module, _inputs, output: (output[0], output[1] * float("nan"))
    )
    for kind in REDUCED:
        words = "question q0: layer 2: attention of head 0, .* is not finite; .*--attention none"
        with pytest.raises(ModelError, match=words):
            extract(
                model, tokenizer, make_questions(1), tmp_path, attention=(kind,), on_error="fail"
            )
    assert list(tmp_path.iterdir()) == []
    assert our_hooks(model) == 0


@pytest.mark.parametrize("kind", ["edges", "heads"])
def test_weights_must_be_probabilities(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    model = make_model()
    module = model.model.layers[1].self_attn
    module.register_forward_hook(lambda _module, _inputs, output: (output[0], output[1] * 5))
    with pytest.raises(
        ModelError, match=r"question q\d: layer 1(, head \d)?: the weight of edge .* is [1-5]"
    ):
        extract(model, tokenizer, make_questions(3), tmp_path, attention=(kind,))


class Attention(torch.nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor]:
        batch, tokens = x.shape
        weights = torch.full((batch, self.heads, tokens, tokens), 1 / tokens, dtype=torch.float16)
        return x, None, weights.tril()


class Layer(torch.nn.Module):
    """Returns the result of its attention module, as older models do."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.attention = Attention(heads)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, _, weights = self.attention(x)
        return x, weights


class Stack(torch.nn.Module):
    def __init__(self, *heads: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(count) for count in heads)

    def forward(self, x: torch.Tensor) -> None:
        for layer in self.layers:
            _, weights = layer(x)
            weights.zero_()


def test_weights_returned_by_two_modules_count_once_and_are_copied() -> None:
    maps = BatchMaps([("a", 2, 2), ("b", 1, 1)], AttentionRules(("full", "edges")))
    stack = Stack(3, 3)
    with maps.collect(stack):
        assert our_hooks(stack) > 0
        stack(torch.zeros(2, 4))
    assert our_hooks(stack) == 0
    maps.require_layers(2)
    for row, tokens in enumerate((4, 2)):
        raw = maps.raw(row)
        assert [layer.shape for layer in raw["attentions"]] == [(3, tokens, tokens)] * 2
        assert all((layer[:, -1] == 0.25).all() for layer in raw["attentions"])
        assert (raw["reduced_attention"]["edges_weight"] == 0.25).all()


def test_large_maps_are_reduced_on_threads_and_stay_in_their_rows() -> None:
    heads, lengths = 9, (256, 200, 250)
    assert heads * max(lengths) ** 2 * 2 >= _SHARED_BYTES
    rules = AttentionRules(("full", *REDUCED))
    maps = BatchMaps([(str(length), 3, length - 3) for length in lengths], rules)
    with maps.collect(stack := Stack(heads, heads)):
        stack(torch.zeros(len(lengths), max(lengths)))
    for row in range(len(lengths)):
        raw = maps.raw(row)
        expected = reduced_to_raw(reduce_maps(raw["attentions"], rules, prompt_length=3))
        assert list(raw["reduced_attention"]) == list(expected)
        for name, value in expected.items():
            assert np.array_equal(raw["reduced_attention"][name], value, equal_nan=name == "sketch")


def test_layers_of_different_heads_cannot_be_reduced() -> None:
    maps = BatchMaps([("a", 2, 2)], AttentionRules(("edges",)))
    stack = Stack(3, 2)
    with maps.collect(stack):
        stack(torch.zeros(1, 4))
    with pytest.raises(ModelError, match="question a: layers have 2 and 3 heads"):
        maps.raw(0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_models_in_half_precision(dtype: torch.dtype, tokenizer: Any, tmp_path: Path) -> None:
    model = make_model().to(dtype)
    extract(model, tokenizer, make_questions(5), tmp_path, attention=("full", *REDUCED))
    for trace in read_all(tmp_path):
        assert trace.reduced is not None
        assert trace.attentions is not None
        assert trace.attentions[0].dtype == np.float16
        assert trace.reduced.sketch is not None
        diagonal = np.diagonal(np.stack(trace.attentions), axis1=2, axis2=3)
        assert np.array_equal(trace.reduced.sketch[..., 0], diagonal)


def test_from_the_command_line(tokenizer: Any, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "q.csv").write_text("question_id,question,reference\na,red green,blue\n")
    words = ["extract", "--model", str(tmp_path / "model"), "--questions", str(tmp_path / "q.csv")]
    words += ["--max-new-tokens", "2"]
    for options, code in (
        (["--attention", "heads, edges", "--edge-rule", "threshold:0.1"], 0),
        (["--attention", "none"], 0),
        ([], 0),
        (["--attention", "some"], 1),
        (["--attention", ","], 1),
    ):
        out = tmp_path / "out" / "-".join(options).replace(":", "-")
        with pytest.raises(SystemExit) as ended:
            main([*words, "--out", str(out), *options])
        assert (ended.value.code or 0) == code
        if code:
            assert not out.exists()
            continue
        (trace,) = read_all(out)
        assert (trace.attentions is not None) == (not options)
        assert (trace.reduced is not None) == ("threshold:0.1" in options)
        if trace.reduced is not None:
            assert trace.reduced.edge_rule == "threshold:0.1"
            assert trace.reduced.head_threshold == 0.05
            assert trace.reduced.sketch is None
