"""Batches of every layout compared with their raw traces."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from builders import LAYERS, Packed, make_dataset, make_raw, write_pickle, write_scores
from loaded import check_once
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.errors import DecodeError
from wdsbench.pack import pack

TOKEN_CHOICES = ["all", "answer", 1, 3, 50, ("first", 1), ("first", 4)]


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("equal"), traces=20, tokens=7)


def wanted(packed: Packed, question_id: str, tokens: Any, layers: Any = None) -> Any:
    """Return the expected states of a trace: float32 ``[L, k, D]``."""
    raw = packed.raws[question_id]
    places = reference.token_range(tokens, len(raw["tokens"]), raw["prompt_length"])
    hidden = packed.hidden(question_id)[:, list(places)]
    return hidden if layers is None else hidden[layers]


@pytest.mark.parametrize("workers", [0, 2])
def test_one_token_stacks(packed: Packed, workers: int) -> None:
    loader = TraceLoader(packed.folder, split=None, batch_size=7, num_workers=workers)
    for batch in check_once(loader, packed):
        assert batch.hidden is not None
        assert batch.hidden.shape == (len(batch), LAYERS, 8)
        assert batch.hidden.dtype == torch.float32
        for i, question_id in enumerate(batch.question_ids):
            expected = wanted(packed, question_id, "last")[:, 0]
            np.testing.assert_array_equal(batch.hidden[i].numpy(), expected)


@pytest.mark.parametrize(
    ("tokens", "layers"),
    [
        *((tokens, None) for tokens in TOKEN_CHOICES),
        *(("answer", layers) for layers in ([2, 0], slice(1, None), -1)),
        *(
            pytest.param(tokens, layers, marks=FULL_ONLY)
            for tokens in TOKEN_CHOICES
            for layers in ([2, 0], slice(1, None), -1)
            if tokens != "answer"
        ),
    ],
)
def test_pad(packed: Packed, tokens: Any, layers: Any) -> None:
    loader = TraceLoader(
        packed.folder, split=None, tokens=tokens, layers=layers, layout="pad", batch_size=7
    )
    for batch in check_once(loader, packed):
        assert batch.hidden is not None
        assert batch.lengths is not None
        assert batch.hidden.shape[2] == batch.lengths.max()
        for i, question_id in enumerate(batch.question_ids):
            expected = wanted(packed, question_id, tokens, [layers] if layers == -1 else layers)
            count = int(batch.lengths[i])
            assert count == expected.shape[1]
            np.testing.assert_array_equal(batch.hidden[i, :, :count].numpy(), expected)
            assert not batch.hidden[i, :, count:].any()


@pytest.mark.parametrize(
    ("tokens", "layers"),
    [
        *((tokens, [2, 0]) for tokens in TOKEN_CHOICES),
        ("answer", None),
        *(
            pytest.param(tokens, None, marks=FULL_ONLY)
            for tokens in TOKEN_CHOICES
            if tokens != "answer"
        ),
    ],
)
def test_jagged(packed: Packed, tokens: Any, layers: Any) -> None:
    loader = TraceLoader(
        packed.folder, split=None, tokens=tokens, layers=layers, layout="jagged", batch_size=7
    )
    for batch in check_once(loader, packed):
        assert batch.hidden is not None
        assert batch.offsets is not None
        assert batch.hidden.shape[1] == batch.offsets[-1]
        for i, question_id in enumerate(batch.question_ids):
            start, end = batch.offsets[i : i + 2].tolist()
            expected = wanted(packed, question_id, tokens, layers)
            np.testing.assert_array_equal(batch.hidden[:, start:end].numpy(), expected)


@pytest.mark.parametrize("tokens", ["all", 2, ("first", 3)])
def test_stack_of_equal_lengths(equal: Packed, tokens: Any) -> None:
    for batch in check_once(TraceLoader(equal.folder, split=None, tokens=tokens), equal):
        assert batch.hidden is not None
        for i, question_id in enumerate(batch.question_ids):
            expected = wanted(equal, question_id, tokens)
            np.testing.assert_array_equal(batch.hidden[i].numpy(), expected)


@pytest.mark.parametrize(
    ("workers", "layers"),
    [
        (0, None),
        (2, [2, 0]),
        *(pytest.param(*pair, marks=FULL_ONLY) for pair in ((0, [2, 0]), (2, None))),
    ],
)
def test_graphs_equal_those_of_pyg(packed: Packed, workers: int, layers: Any) -> None:
    from torch_geometric.data import Batch as GraphBatch
    from torch_geometric.data import Data

    loader = TraceLoader(
        packed.folder, split=None, layout="graph", layers=layers, batch_size=7, num_workers=workers
    )
    for batch in check_once(loader, packed):
        graphs = []
        for question_id in batch.question_ids:
            raw, hidden = packed.raws[question_id], packed.hidden(question_id)
            for layer in layers or range(LAYERS):
                edges = reference.mean_edges(raw["attentions"][layer], "top", 0.35)
                index = torch.tensor([[j, i] for j, i, _ in edges], dtype=torch.int64).T
                weight = torch.tensor([[float(w)] for _, _, w in edges])
                x = torch.from_numpy(hidden[layer])
                graphs.append(Data(x=x, edge_index=index, edge_attr=weight))
        expected = GraphBatch.from_data_list(graphs)
        for name in ("x", "edge_index", "edge_attr", "batch", "ptr"):
            assert torch.equal(batch.graph[name], expected[name]), name
            assert batch.graph[name].dtype == expected[name].dtype
        assert batch.graph.num_graphs == expected.num_graphs
        for ours, theirs in zip(batch.graph.to_data_list(), graphs, strict=True):
            assert torch.equal(ours.edge_index, theirs.edge_index)
            assert torch.equal(ours.x, theirs.x)
        assert torch.equal(batch.graph.get_example(2).edge_attr, graphs[2].edge_attr)


def test_logprobs_and_meta(packed: Packed) -> None:
    fields = ("logprobs", "meta")
    for batch in check_once(TraceLoader(packed.folder, split=None, fields=fields), packed):
        assert batch.hidden is None
        assert batch.logprobs is not None
        assert batch.meta is not None
        for i, question_id in enumerate(batch.question_ids):
            raw = packed.raws[question_id]
            np.testing.assert_array_equal(batch.logprobs[i], raw["token_logprobs"])
            assert batch.meta[i]["answer"] == raw["generated_answer_clean"]
            assert batch.meta[i]["prompt_length"] == raw["prompt_length"]


#: (batch size, drop_last, workers) of `make test`, beside those without workers.
LENGTHS_OF_WORKERS = [(7, False, 3), (7, True, 2), (1000, False, 2)]


# torch suggests no more workers than cores.
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes:UserWarning")
@pytest.mark.parametrize(
    ("batch_size", "drop_last", "workers"),
    [
        pytest.param(
            *choice, marks=FULL_ONLY if choice[2] and choice not in LENGTHS_OF_WORKERS else ()
        )
        for choice in itertools.product([1, 7, 1000], [False, True], [0, 2, 3])
    ],
)
def test_len_is_exact(packed: Packed, workers: int, drop_last: bool, batch_size: int) -> None:
    loader = TraceLoader(
        packed.folder,
        split=None,
        batch_size=batch_size,
        drop_last=drop_last,
        num_workers=workers,
        fields=(),
    )
    batches = list(loader)
    assert len(batches) == len(loader)
    if drop_last:
        assert {len(batch) for batch in batches} <= {batch_size}


def order(loader: TraceLoader) -> list[str]:
    return [key for batch in loader for key in batch.keys]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_differ_and_repeat(packed: Packed, workers: int) -> None:
    def make() -> TraceLoader:
        return TraceLoader(packed.folder, split=None, num_workers=workers, fields=(), seed=5)

    loader = make()
    first, second = order(loader), order(loader)
    assert sorted(first) == sorted(second)
    assert first != second
    again = make()
    again.set_epoch(1)
    assert order(again) == second
    assert order(make()) == first


def test_shuffle_zero_is_the_order_of_the_shards(packed: Packed) -> None:
    loader = TraceLoader(packed.folder, split=None, shuffle=0, fields=())
    assert order(loader) == [loader.index.key(row) for row in range(len(loader.index))]
    assert order(loader) == order(loader)


def test_batches_can_be_kept(packed: Packed) -> None:
    kept = list(TraceLoader(packed.folder, split=None, batch_size=1))
    for batch in kept:
        assert batch.hidden is not None
        expected = wanted(packed, batch.question_ids[0], "last")[:, 0]
        np.testing.assert_array_equal(batch.hidden[0].numpy(), expected)


def test_two_loaders_at_once_and_one_inside_the_other(packed: Packed) -> None:
    outer = TraceLoader(packed.folder, split="val", batch_size=2)
    inner = TraceLoader(packed.folder, split="test", batch_size=3, seed=1)
    alone = order(TraceLoader(packed.folder, split="test", batch_size=3, seed=1))
    for _ in outer:
        inner.set_epoch(0)
        assert order(inner) == alone
    pairs = zip(outer, TraceLoader(packed.folder, split="train", batch_size=2), strict=False)
    assert sum(1 for _ in pairs) == len(outer)


def test_stats(packed: Packed) -> None:
    loader = TraceLoader(packed.folder, split=None, tokens="all", layout="pad", batch_size=7)
    check_once(loader, packed)
    assert loader.stats.samples == 60
    assert loader.stats.batches == len(loader)
    raw = sum(2 * packed.hidden(question_id).size for question_id in packed.raws)
    assert loader.stats.bytes_read == raw
    assert 0 < loader.stats.trainer_waited_seconds <= loader.stats.seconds
    assert loader.stats.decode_seconds > 0
    assert loader.stats.gbps > 0
    assert loader.stats.verdict.startswith("Training")


def test_an_early_break_leaves_no_worker(packed: Packed) -> None:
    import multiprocessing

    for _ in TraceLoader(packed.folder, split=None, num_workers=2, batch_size=1):
        break
    for child in multiprocessing.active_children():
        child.join(10)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"split": "dev"}, ValueError, "split 'dev'"),
        ({"fields": "hidden"}, TypeError, "pass a tuple"),
        (
            {"fields": ("states",)},
            ValueError,
            "'states' is not one of hidden, image, logprobs",
        ),
        ({"layout": "union-graph"}, DecodeError, "60 samples|repack with --attention heads"),
        ({"layers": [3]}, ValueError, "3 is not one of the 3 stored"),
        ({"layers": []}, ValueError, "selects none"),
        ({"layers": True}, ValueError, "True is not one of the 3 stored"),
        ({"layers": [1.0]}, ValueError, r"1\.0 is not one of the 3 stored"),
        ({"layers": "abc"}, ValueError, "'a' is not one of the 3 stored"),
        ({"device": "foo"}, ValueError, "device: 'foo'"),
        ({"tokens": "first"}, ValueError, "tokens: 'first' is not one of"),
        ({"tokens": 0}, ValueError, "tokens: 0 is not one of"),
        ({"tokens": ("last", 2)}, ValueError, "is not one of"),
        ({"layout": "heap"}, ValueError, "layout: 'heap' is not one of"),
        ({"batch_size": 0}, ValueError, "batch_size is 0"),
        ({"shuffle": -1}, ValueError, "shuffle is -1"),
        ({"threads": 0}, ValueError, "threads is 0"),
        ({"num_workers": -1}, ValueError, "num_workers is -1"),
        ({"verify": "trust"}, ValueError, "'trust' is not one of header, hash"),
        ({"tokens": "all"}, DecodeError, "use layout='pad' or 'jagged'"),
    ],
)
def test_wrong_arguments(
    packed: Packed, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        TraceLoader(packed.folder, **arguments)


def test_integers_of_numpy_are_integers(packed: Packed) -> None:
    (batch, *_) = TraceLoader(
        packed.folder, batch_size=np.int64(4), tokens=np.int64(2), layers=np.int64(1)
    )
    assert batch.hidden is not None
    assert batch.hidden.shape == (4, 1, 2, 8)


def pack_raws(folder: Path, raws: list[dict[str, Any]]) -> Path:
    write_pickle(folder / "t.pkl", raws)
    scores = write_scores(folder / "s.csv", {raw["question_id"]: 1.0 for raw in raws})
    pack([str(folder / "t.pkl")], folder / "shards", scores=scores)
    return folder / "shards"


def test_unknown_prompt_length_refuses_only_the_answer(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i}", seed=i) for i in range(4)]
    for raw in raws:
        del raw["prompt_length"], raw["token_logprobs"]
    shards = pack_raws(tmp_path, raws)
    with pytest.raises(DecodeError, match="4 samples have no prompt length"):
        TraceLoader(shards, split=None, tokens="answer", layout="pad")
    (batch,) = TraceLoader(shards, split=None, fields=("hidden", "logprobs"))
    assert batch.prompt_length.tolist() == [-1] * 4
    assert batch.logprobs == [None] * 4


def test_only_the_states_of_the_last_step(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i}", seed=i, tokens=5) for i in range(4)]
    for raw in raws:
        raw["hidden_states"] = [layer[-1:] for layer in raw["hidden_states"]]
    shards = pack_raws(tmp_path, raws)
    (batch,) = TraceLoader(shards, split=None, tokens="last")
    assert batch.hidden is not None
    for i, question_id in enumerate(batch.question_ids):
        expected = np.stack(raws[int(question_id[1:])]["hidden_states"])[:, 0]
        np.testing.assert_array_equal(batch.hidden[i].numpy(), expected.astype(np.float32))
    for choice in ({"tokens": "last_answer"}, {"layout": "graph"}):
        with pytest.raises(DecodeError, match="the states of one token only"):
            TraceLoader(shards, split=None, **choice)


def test_graphs_without_attention_name_the_remedy(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i}", seed=i) for i in range(4)]
    del raws[2]["attentions"]
    with pytest.raises(DecodeError, match="1 samples hold no edges; repack with --attention edges"):
        TraceLoader(pack_raws(tmp_path, raws), split=None, layout="graph")


@pytest.mark.gpu
def test_batches_arrive_on_the_device(packed: Packed) -> None:
    for layout in ("stack", "graph"):
        loader = TraceLoader(packed.folder, split=None, layout=layout, device="cuda")
        for batch in loader:
            moved = batch.graph.x if layout == "graph" else batch.hidden
            assert moved is not None
            assert moved.is_cuda
            assert batch.label.is_cuda
