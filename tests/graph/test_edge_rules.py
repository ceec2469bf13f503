"""One set of rules for edges: the same hostile lists are refused wherever edges are met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import HEADS, LAYERS, Packed, make_dataset, make_raw
from graph.hostile_edges import HOSTILE, TOKENS, Hostile, sound_edges
from shards.damage import Sample, npy, rewritten, spot
from trials import FULL_ONLY

from wdsbench import TraceLoader, _core
from wdsbench.errors import DecodeError, TraceError
from wdsbench.pack import PackOptions
from wdsbench.shards.check.verify import verify_dataset
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.traces.check import check_trace
from wdsbench.view.source import open_trace

ROW = 2
LISTS = {"edges": LAYERS, "heads": LAYERS * HEADS}

kinds = pytest.mark.parametrize("kind", ["edges", "heads"])
hostile = pytest.mark.parametrize("case", HOSTILE, ids=[case.name for case in HOSTILE])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    options = PackOptions(attention=("edges", "heads"), threads=1)
    return make_dataset(
        tmp_path_factory.mktemp("data"), traces=4, tokens=TOKENS, shard_mb=0.05, options=options
    )


def broken(case: Hostile, kind: str) -> dict[str, Any]:
    arrays = sound_edges(LISTS[kind])
    case.change(arrays)
    return arrays


def check(arrays: dict[str, Any], kind: str, tokens: int = TOKENS) -> None:
    _core.check_edge_lists(
        arrays["index"],
        arrays["weight"],
        arrays["ptr"],
        tokens=tokens,
        layers=LAYERS,
        heads=HEADS if kind == "heads" else 0,
    )


@kinds
@hostile
def test_rules(kind: str, case: Hostile) -> None:
    arrays = broken(case, kind)
    with pytest.raises(_core.FormatError, match=case.words) as caught:
        check(arrays, kind)
    error = caught.value
    assert (error.kind, error.member) == (case.kind, f"{kind}_{case.part}")
    assert error.offset_bytes == case.element * arrays[case.part].itemsize


@kinds
@hostile
def test_packing(kind: str, case: Hostile) -> None:
    arrays = {f"{kind}_{part}": array for part, array in broken(case, kind).items()}
    reduced = {"num_heads": HEADS, "edge_rule": "top:0.5", "head_threshold": 0.1, **arrays}
    raw = make_raw("q", seed=0, tokens=TOKENS)
    raw.update(attentions=None, reduced_attention=reduced)
    with pytest.raises(TraceError, match=case.words) as caught:
        check_trace(raw, "a.pkl", 0)
    assert f"reduced_attention: {kind}_{case.part}: " in str(caught.value).replace(
        "reduced_attention ", "reduced_attention: "
    )


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(
            kind,
            case,
            marks=() if number % 2 == place else FULL_ONLY,
            id=f"{kind}-{case.name}",
        )
        for place, kind in enumerate(("edges", "heads"))
        for number, case in enumerate(HOSTILE)
    ],
)
def test_verifying_viewing_and_decoding(
    packed: Packed, tmp_path: Path, kind: str, case: Hostile
) -> None:
    arrays = broken(case, kind)

    def replace(samples: list[Sample]) -> None:
        members = samples[ROW].members
        members.update({f"{kind}_{part}.npy": npy(array) for part, array in arrays.items()})

    folder = rewritten(packed.folder, tmp_path / "out", replace)
    index = DatasetIndex.open(folder)
    member = f"{kind}_{case.part}.npy"
    name = index.member_name(ROW, member)
    header = 128
    place = spot(index, ROW, member).offset + header + case.element * arrays[case.part].itemsize

    (problem,) = verify_dataset(folder).problems
    assert problem.member == name
    assert problem.kind == ("value" if case.kind == "value" else "npy")
    assert case.words in problem.detail

    with pytest.raises(DecodeError, match=case.words) as viewed:
        open_trace(folder, trace=ROW)
    assert viewed.value.member == name

    layout = "graph" if kind == "edges" else "union-graph"
    with pytest.raises(DecodeError, match=case.words) as decoded:
        list(TraceLoader(folder, split=None, layout=layout))
    assert decoded.value.member == name

    if case.kind == "value":
        assert problem.offset_bytes == place
        assert viewed.value.offset_bytes == place
        assert decoded.value.offset_bytes == place


@kinds
@pytest.mark.parametrize("weight", [0.0, -0.0, 1.0, 1.01])
def test_weights_within_tolerance(kind: str, weight: float) -> None:
    arrays = sound_edges(LISTS[kind])
    arrays["weight"][:] = weight
    check(arrays, kind)


@kinds
def test_lists_without_edges(kind: str) -> None:
    arrays = sound_edges(LISTS[kind])
    arrays["ptr"][:] = 0
    arrays.update(index=arrays["index"][:, :0].copy(), weight=arrays["weight"][:0])
    check(arrays, kind)


@kinds
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 33, pytest.param(64, marks=FULL_ONLY), 100])
def test_one_fault_anywhere_in_a_long_list(kind: str, dtype: Any, count: int) -> None:
    """Every lane of the vector loops finds its fault, at any alignment."""
    pairs = [(source, target) for target in range(20) for source in range(target)][:count]
    for at in range(count):
        for fault in ("source", "target", "weight", "twice"):
            index = np.array(pairs, dtype).T.copy()
            weight = np.full(count, 0.5, np.float16)
            if fault == "source":
                index[0, at] = index[1, at]
            elif fault == "target":
                index[1, at] = 200
            elif fault == "weight":
                weight[at] = 2
            elif at:
                index[:, at] = index[:, at - 1]
            else:
                continue
            lists = LISTS[kind]
            pointer = np.array([0] + [count] * lists, np.uint32)
            with pytest.raises(_core.FormatError) as caught:
                check({"index": index, "weight": weight, "ptr": pointer}, kind, tokens=20)
            part = weight if fault == "weight" else index
            assert caught.value.offset_bytes == at * part.itemsize
            assert caught.value.sample == 0
