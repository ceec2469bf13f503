"""Unpacked traces equal the packed ones and give the same shards when packed again."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_raw, write_pickle, write_scores
from trials import FULL_ONLY

from wdsbench.errors import PackError, ShardError
from wdsbench.pack import PackOptions, pack
from wdsbench.pack.unpack import unpack
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.traces.read import read_traces


def tars(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.tar")}


def make_raws(count: int = 20) -> list[dict[str, Any]]:
    """Return traces of every kind: with and without texts, boundary, log-probabilities."""
    raws = [make_raw(f"q/{i % 15}", seed=i) for i in range(count)]
    for i, raw in enumerate(raws):
        raw["label"] = i % 2
        if i % 7 == 1:
            raw["token_logprobs"][0] = -np.inf
        if i % 7 == 2:
            del raw["prompt_length"], raw["token_logprobs"]
        if i % 7 == 3:
            del raw["tokens_decoded"], raw["generated_answer_clean"]
        if i % 7 == 4:
            del raw["attentions"]
        if i % 7 == 5:
            raw["hidden_states"] = [np.float32(s) for s in raw["hidden_states"]]
            raw["hidden_states"][1] = np.exp2(np.float32(20)) * raw["hidden_states"][1]
        if i % 7 == 6:
            raw["hidden_states"] = [*raw["hidden_states"], raw["hidden_states"][0]]
    return raws


#: (file format, attention) of `make test`.
QUICK = [("npz", ("edges", "heads", "sketch")), ("pkl", ("full", "edges"))]


@pytest.mark.parametrize(
    ("file_format", "attention"),
    [
        pytest.param(*choice, marks=() if choice in QUICK else FULL_ONLY)
        for choice in itertools.product(
            ("npz", "pkl"),
            (("edges", "sketch"), ("edges", "heads", "sketch"), ("full", "edges"), ()),
        )
    ],
)
def test_packing_again_gives_the_same_shards(
    file_format: str, attention: tuple[str, ...], tmp_path: Path
) -> None:
    raws = make_raws()
    write_pickle(tmp_path / "b1.pkl", raws[:13])
    write_pickle(tmp_path / "b2.pkl", raws[13:])
    options = PackOptions(attention=attention, shard_mb=0.01)
    report = pack([str(tmp_path / "b*.pkl")], tmp_path / "out", options=options)
    unpacked = unpack(tmp_path / "out", tmp_path / "back", file_format=file_format)
    assert unpacked.samples == 20
    assert unpacked.scores is None
    again = pack([str(tmp_path / "back")], tmp_path / "again", options=options)
    assert tars(tmp_path / "again") == tars(tmp_path / "out")
    assert again.remarks == report.remarks
    first, second = DatasetIndex.open(tmp_path / "out"), DatasetIndex.open(tmp_path / "again")
    assert second.file.table == first.file.table


def test_sequences_and_graphs_are_restored(tmp_path: Path) -> None:
    import torch
    from torch_geometric.data import Data

    ids, labels = [f"q{i}" for i in range(9)], [i % 2 for i in range(9)]
    torch.save(
        {"sequences": torch.randn(9, 3, 4), "question_ids": ids, "labels": labels},
        tmp_path / "s.pt",
    )
    graph = Data(
        x=torch.randn(3, 4),
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 2]]),
        edge_attr=torch.tensor([[0.5], [0.25], [1.0]]),
    )
    torch.save(
        {"graphs": [[graph] * 3] * 9, "question_ids": [f"g{i}" for i in ids], "labels": labels},
        tmp_path / "g.pt",
    )
    options = PackOptions(attention=("edges",))
    report = pack([str(tmp_path / "?.pt")], tmp_path / "out", options=options)
    unpack(tmp_path / "out", tmp_path / "back")
    again = pack([str(tmp_path / "back")], tmp_path / "again", options=options)
    assert tars(tmp_path / "again") == tars(tmp_path / "out")
    assert again.remarks == report.remarks


def test_states_texts_and_scores(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i}", seed=i) for i in range(20)]
    write_pickle(tmp_path / "b.pkl", raws)
    scores = {f"q{i}": i / 20 for i in range(20)}
    table = write_scores(tmp_path / "s.csv", scores, "f1")
    pack([str(tmp_path / "b.pkl")], tmp_path / "out", scores=table)
    report = unpack(tmp_path / "out", tmp_path / "back", split="train")
    assert all(path.name.startswith("train-") for path in report.files)
    found = [trace for path in report.files for trace in read_traces(path)]
    assert len(found) == report.samples == DatasetIndex.open(tmp_path / "out").counts["train"]
    for trace in found:
        raw = raws[int(trace.question_id[1:])]
        np.testing.assert_array_equal(trace.hidden, np.stack(raw["hidden_states"]))
        assert trace.token_texts == raw["tokens_decoded"]
        assert trace.label == float(scores[trace.question_id] < 0.5)
    assert report.scores is not None
    with report.scores.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["question_id"] for row in rows} == {trace.question_id for trace in found}
    for row in rows:
        assert np.float32(row["f1"]) == np.float32(scores[row["question_id"]])
    # NumPy alone can read it
    with np.load(report.files[0], allow_pickle=False) as archive:
        assert archive["0.hidden_states"].dtype == np.float16


def same_after_packing_again(tmp_path: Path, options: PackOptions) -> list[list[str]]:
    """Unpack ``out``, pack it again with its unpacked scores, and return the lines of these."""
    report = unpack(tmp_path / "out", tmp_path / "back")
    assert report.scores is not None
    pack([str(tmp_path / "back")], tmp_path / "again", scores=report.scores, options=options)
    assert tars(tmp_path / "again") == tars(tmp_path / "out")
    first, second = DatasetIndex.open(tmp_path / "out"), DatasetIndex.open(tmp_path / "again")
    assert second.file.table == first.file.table
    with report.scores.open() as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("stated", [True, False])
def test_scores_of_traces_are_restored(stated: bool, tmp_path: Path) -> None:
    """Trace numbers are kept if the traces of a question differ; some have no score."""
    raws = [{**make_raw(f"q{i % 8}", seed=i), "label": 1} for i in range(24)]
    if stated:
        raws = [{**raw, "trace_number": 10 - i // 8} for i, raw in enumerate(raws)]
    write_pickle(tmp_path / "b.pkl", raws)
    lines = [
        f"q{i % 8},{10 - i // 8 if stated else i // 8},{'' if i % 7 == 3 else i / 23}"
        for i in range(24)
    ]
    (tmp_path / "s.csv").write_text("\n".join(["question_id,trace,f1", *lines, ""]))
    options = PackOptions(missing_score="keep", threshold=0.4)
    pack([str(tmp_path / "b.pkl")], tmp_path / "out", scores=tmp_path / "s.csv", options=options)
    head, *rows = same_after_packing_again(tmp_path, options)
    assert head == ["question_id", "trace", "f1"]
    got = {(name, trace): np.float32(score) for name, trace, score in rows}
    wanted = {tuple(line.split(",")[:2]): line.split(",")[2] for line in lines}
    assert got == {key: np.float32(score) for key, score in wanted.items() if score}


def test_one_score_per_question_is_restored_as_one(tmp_path: Path) -> None:
    write_pickle(tmp_path / "b.pkl", [make_raw(f"q{i % 8}", seed=i) for i in range(16)])
    table = write_scores(tmp_path / "s.csv", {f"q{i}": i / 8 for i in range(8)})
    pack([str(tmp_path / "b.pkl")], tmp_path / "out", scores=table)
    head, *rows = same_after_packing_again(tmp_path, PackOptions())
    assert head == ["question_id", "bleurt_score"]
    assert sorted(rows) == [[f"q{i}", str(i / 8)] for i in range(8)]


@pytest.mark.parametrize(
    "threshold", [0.3, *(pytest.param(value, marks=FULL_ONLY) for value in (0.5, 1 / 3))]
)
def test_scores_near_the_threshold_keep_their_label(threshold: float, tmp_path: Path) -> None:
    """The table stores float32, in which these scores equal the threshold."""
    near = [threshold, *(np.nextafter(threshold, side) for side in (0, 1))]
    near += [threshold - 1e-12, threshold + 1e-12]
    write_pickle(tmp_path / "b.pkl", [make_raw(f"q{i}", seed=i) for i in range(len(near))])
    table = tmp_path / "s.csv"
    lines = [f"q{i},{float(score)!r}" for i, score in enumerate(near)]
    table.write_text("\n".join(["question_id,s", *lines, ""]))
    options = PackOptions(threshold=threshold)
    pack([str(tmp_path / "b.pkl")], tmp_path / "out", scores=table, options=options)
    same_after_packing_again(tmp_path, options)
    index = DatasetIndex.open(tmp_path / "again")
    labels = {index.question_id(row): index.columns["label"][row] for row in range(len(index))}
    assert labels == {f"q{i}": float(score < threshold) for i, score in enumerate(near)}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    write_pickle(tmp_path / "b.pkl", [{**r, "label": 1} for r in make_raws(10)])
    pack([str(tmp_path / "b.pkl")], tmp_path / "out")
    return tmp_path / "out"


def test_damage_is_named_and_no_file_is_left(packed: Path, tmp_path: Path) -> None:
    index = DatasetIndex.open(packed)
    shard = index.shard_path(0)
    data = bytearray(shard.read_bytes())
    data[int(index.member("hidden.npy", "offset")[0]) + 200] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ShardError, match=r"hidden\.npy.*not those that were packed") as caught:
        unpack(packed, tmp_path / "back")
    assert caught.value.shard == str(shard)
    assert list((tmp_path / "back").iterdir()) == []
    shard.write_bytes(data[:600])
    with pytest.raises(ShardError, match="the file ends here"):
        unpack(packed, tmp_path / "back")


def test_existing_files_are_not_overwritten(packed: Path, tmp_path: Path) -> None:
    name = DatasetIndex.open(packed).shard_path(0).stem
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / f"{name}.npz").write_bytes(b"mine")
    with pytest.raises(PackError, match="exists; remove it"):
        unpack(packed, tmp_path / "back")
    assert (tmp_path / "back" / f"{name}.npz").read_bytes() == b"mine"


def test_invalid_packed_from_is_ignored(tmp_path: Path) -> None:
    for value in ("x", {"file": 3, "position": 0, "remarks": []}, {"file": "a", "position": -1}):
        write_pickle(tmp_path / "b.pkl", [{**make_raw("q", seed=0), "packed_from": value}])
        (trace,) = read_traces(tmp_path / "b.pkl")
        assert trace.position == 0
        assert trace.origin is None
