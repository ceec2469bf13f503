"""Union graphs and sketches compared with the raw attention maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from builders import HEADS, LAYERS, Packed, make_dataset, make_raw, write_pickle, write_scores
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.errors import DecodeError, TraceError
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.format.kinds import ATTENTION, HEADS_INDEX, HEADS_WEIGHT

ALL = PackOptions(attention=("full", "edges", "heads", "sketch"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=30, options=ALL)


@pytest.mark.parametrize(
    ("workers", "layers"),
    [
        (0, None),
        (2, [2, 0]),
        *(pytest.param(*pair, marks=FULL_ONLY) for pair in ((0, [2, 0]), (2, None))),
    ],
)
def test_union_graphs(packed: Packed, workers: int, layers: Any) -> None:
    from torch_geometric.data import Batch as GraphBatch
    from torch_geometric.data import Data

    loader = TraceLoader(
        packed.folder,
        split=None,
        layout="union-graph",
        layers=layers,
        batch_size=7,
        num_workers=workers,
    )
    seen = 0
    for batch in loader:
        graphs = []
        for question_id in batch.question_ids:
            raw, hidden = packed.raws[question_id], packed.hidden(question_id)
            chosen = list(layers or range(LAYERS))
            maps = [raw["attentions"][layer] for layer in chosen]
            pairs, attr = reference.union_graph(maps, 0.05, raw["prompt_length"])
            index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
            x = torch.from_numpy(np.ascontiguousarray(hidden[chosen].transpose(1, 0, 2)))
            graphs.append(Data(x=x, edge_index=index, edge_attr=torch.from_numpy(attr)))
        expected = GraphBatch.from_data_list(graphs)
        for name in ("x", "edge_index", "edge_attr", "batch", "ptr"):
            assert torch.equal(batch.graph[name], expected[name]), name
        assert batch.graph.edge_attr.shape[1] == len(layers or range(LAYERS)) * HEADS
        for ours, theirs in zip(batch.graph.to_data_list(), graphs, strict=True):
            assert torch.equal(ours.edge_index, theirs.edge_index)
            assert torch.equal(ours.edge_attr, theirs.edge_attr)
            assert torch.equal(ours.x, theirs.x)
        seen += len(batch)
    assert seen == 30


@pytest.mark.parametrize(
    ("workers", "layers"),
    [
        (0, None),
        (2, [1]),
        *(pytest.param(*pair, marks=FULL_ONLY) for pair in ((0, [1]), (2, None))),
    ],
)
def test_sketches(packed: Packed, workers: int, layers: Any) -> None:
    loader = TraceLoader(
        packed.folder, split=None, fields=("sketch",), layers=layers, num_workers=workers
    )
    for batch in loader:
        assert batch.sketch is not None
        for question_id, values in zip(batch.question_ids, batch.sketch, strict=True):
            raw = packed.raws[question_id]
            for layer, found in zip(layers or range(LAYERS), values, strict=True):
                expected = reference.sketch(raw["attentions"][layer], raw["prompt_length"])
                np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)


def test_full_maps_are_stored(packed: Packed) -> None:
    from wdsbench.stream import SampleMembers, load_member

    index = TraceLoader(packed.folder, split=None).index
    for sample in SampleMembers(index)(range(5)):
        raw = packed.raws[sample["question_id"]]
        tokens = len(raw["tokens"])
        rows, columns = np.tril_indices(tokens)
        stored = load_member(sample[ATTENTION])
        assert stored.shape == (LAYERS, HEADS, tokens * (tokens + 1) // 2)
        for layer, values in zip(raw["attentions"], stored, strict=True):
            np.testing.assert_array_equal(values, layer[:, rows, columns])


def patched(packed: Packed, member: str, at: int, data: bytes) -> tuple[TraceLoader, str, Path]:
    loader = TraceLoader(packed.folder, split=None, layout="union-graph")
    index, row = loader.index, 11
    path = index.shard_path(int(index.columns["shard"][row]))
    with path.open("r+b") as file:
        file.seek(int(index.member(member, "offset")[row]) + at)
        file.write(data)
    return TraceLoader(packed.folder, split=None, layout="union-graph"), index.key(row), path


@pytest.mark.parametrize(
    ("member", "data", "words"),
    [
        (HEADS_INDEX, b"\xff", r"layer 0, head \d: edge 255 -> "),
        (HEADS_WEIGHT, b"\x00\x7c", "is inf; attention weights"),
        ("heads_ptr.npy", b"\x01", "pointers start at 0"),
    ],
)
def test_damage_is_named(tmp_path: Path, member: str, data: bytes, words: str) -> None:
    packed = make_dataset(tmp_path, traces=12, options=ALL, tokens=6)
    loader, key, path = patched(packed, member, 128, data)
    with pytest.raises(DecodeError, match=words) as caught:
        list(loader)
    assert (caught.value.shard, caught.value.member) == (str(path), f"{key}.{member}")


def pack_raws(folder: Path, raws: list[dict[str, Any]], kinds: tuple[str, ...]) -> Path:
    write_pickle(folder / "t.pkl", raws)
    scores = write_scores(folder / "s.csv", {raw["question_id"]: 1.0 for raw in raws})
    options = PackOptions(attention=kinds)
    pack([str(folder / "t.pkl")], folder / "shards", scores=scores, options=options)
    return folder / "shards"


def test_errors_of_missing_members_name_the_remedy(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i}", seed=i) for i in range(4)]
    shards = pack_raws(tmp_path, raws, ("edges",))
    with pytest.raises(DecodeError, match="4 samples hold no heads; repack with --attention heads"):
        TraceLoader(shards, split=None, layout="union-graph")
    with pytest.raises(DecodeError, match="no sketch; repack with --attention sketch"):
        TraceLoader(shards, split=None, fields=("sketch",))


def test_an_unknown_prompt_has_no_union_graph(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i}", seed=i) for i in range(4)]
    for raw in raws:
        del raw["prompt_length"], raw["token_logprobs"]
    shards = pack_raws(tmp_path, raws, ("heads", "sketch"))
    with pytest.raises(DecodeError, match="4 samples have no prompt length"):
        TraceLoader(shards, split=None, layout="union-graph")
    (batch,) = TraceLoader(shards, split=None, fields=("sketch",))
    assert batch.sketch is not None
    assert all(values[..., 2].isnan().all() for values in batch.sketch)
    assert not any(values[..., 3].isnan().any() for values in batch.sketch)


def test_layers_of_different_heads_are_refused(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i}", seed=i) for i in range(2)]
    raws[1]["attentions"] = [layer[:1] for layer in raws[1]["attentions"]]
    with pytest.raises(TraceError, match="need the same number in every layer and trace"):
        pack_raws(tmp_path, raws, ("heads",))
