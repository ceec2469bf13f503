"""Packing: numbers survive, order and bytes are stable, and what is wrong writes nothing."""

from __future__ import annotations

import errno
import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import LAYERS, make_dataset, make_raw, write_pickle, write_scores
from forks import start_code
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.errors import PackError, ScoreError, TraceError, WdsbenchError
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.writer import DatasetWriter


def raws_of(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [{**make_raw(f"q{i}", seed=i), **changes} for i in range(count)]


def pack_list(tmp_path: Path, raws: list[dict[str, Any]], **options: Any) -> DatasetIndex:
    write_pickle(tmp_path / "traces" / "batch.pkl", raws)
    scores = {str(raw["question_id"]): i / len(raws) for i, raw in enumerate(raws)}
    write_scores(tmp_path / "scores.csv", scores)
    pack(
        [str(tmp_path / "traces" / "*")],
        tmp_path / "shards",
        scores=tmp_path / "scores.csv",
        options=PackOptions(**options),
    )
    return DatasetIndex.open(tmp_path / "shards")


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_input_same_bytes(tmp_path: Path) -> None:
    first = make_dataset(tmp_path / "a", seed=3, traces=20)
    second = make_dataset(tmp_path / "elsewhere", seed=3, traces=20)
    assert folder_bytes(first.folder) == folder_bytes(second.folder)


def test_shards_close_at_their_size_and_nothing_else_is_left(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=20, shard_mb=0.01)
    index = DatasetIndex.open(packed.folder)
    assert len(index.file.shardlist) > 5
    allowed = {entry.url for entry in index.file.shardlist} | {"index.json", index.file.table.file}
    assert {path.name for path in packed.folder.iterdir()} == allowed


def test_pickle_and_gzip_under_one_pattern(tmp_path: Path) -> None:
    raws = raws_of(6)
    write_pickle(tmp_path / "traces" / "a.pkl", raws[:3])
    (tmp_path / "traces" / "b.pkl.gz").write_bytes(gzip.compress(pickle.dumps(raws[3:])))
    scores = write_scores(tmp_path / "s.csv", {f"q{i}": 1.0 for i in range(6)})
    report = pack([str(tmp_path / "traces" / "*.pkl*")], tmp_path / "out", scores=scores)
    assert report.samples == 6
    assert [entry.samples for entry in report.index.provenance.inputs] == [3, 3]


def test_pt_sequences_keep_their_labels(tmp_path: Path) -> None:
    import torch

    states = torch.randn(40, LAYERS, 8)
    labels = [i % 2 for i in range(40)]
    torch.save(
        {"sequences": states, "labels": labels, "question_ids": [f"q{i}" for i in range(40)]},
        tmp_path / "set.pt",
    )
    report = pack([str(tmp_path / "set.pt")], tmp_path / "out")
    assert report.without_attention == 40
    seen = {}
    for batch in TraceLoader(tmp_path / "out", split=None):
        for i, question_id in enumerate(batch.question_ids):
            assert batch.hidden is not None
            number = int(question_id[1:])
            seen[number] = int(batch.label[i])
            expected = states[number].numpy().astype(np.float16).astype(np.float32)
            np.testing.assert_array_equal(batch.hidden[i].numpy(), expected)
    assert seen == dict(enumerate(labels))


def test_states_beyond_float16_come_back_within_their_rounding(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i}", seed=i, dtype=np.float32) for i in range(8)]
    for raw in raws[::2]:
        raw["hidden_states"][1] *= 1e6
    index = pack_list(tmp_path, raws)
    assert [layer.scaled_samples for layer in index.file.layers] == [0, 4, 0]
    for batch in TraceLoader(tmp_path / "shards", split=None, tokens="all", layout="pad"):
        assert batch.hidden is not None
        for i, question_id in enumerate(batch.question_ids):
            wanted = np.stack(raws[int(question_id[1:])]["hidden_states"])
            got = batch.hidden[i, :, : wanted.shape[1]].numpy()
            scale = np.abs(wanted).max(axis=(1, 2), keepdims=True)
            assert (np.abs(got - wanted) <= scale * 2**-11).all()


def test_label_is_one_below_the_threshold(tmp_path: Path) -> None:
    index = pack_list(tmp_path, raws_of(10), threshold=0.3)
    for row in range(10):
        score, label = index.columns["score"][row], index.columns["label"][row]
        assert label == float(score < 0.3)


def test_several_traces_of_a_question_share_its_split(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i % 10}", seed=i) for i in range(30)]
    index = pack_list(tmp_path, raws)
    splits: dict[str, set[int]] = {}
    for row in range(30):
        splits.setdefault(index.question_id(row), set()).add(int(index.columns["split"][row]))
    assert all(len(of_question) == 1 for of_question in splits.values())
    assert sorted(index.columns["trace"].tolist()) == [0] * 10 + [1] * 10 + [2] * 10


def test_equal_answers_are_traces_and_copied_files_are_not(tmp_path: Path) -> None:
    raw = make_raw("q", seed=0)
    scores = write_scores(tmp_path / "s.csv", {"q": 1.0})
    write_pickle(tmp_path / "a.pkl", [raw, raw])
    assert pack([str(tmp_path / "a.pkl")], tmp_path / "one", scores=scores).samples == 2
    write_pickle(tmp_path / "b.pkl", [raw])
    with pytest.raises(TraceError, match=r"is the same trace as .*a\.pkl, trace 0"):
        pack([str(tmp_path / "?.pkl")], tmp_path / "two", scores=scores)
    write_pickle(tmp_path / "c.pkl", [dict(raw, trace_number=n) for n in (0, 1)])
    write_pickle(tmp_path / "d.pkl", [dict(raw, trace_number=2)])
    assert pack([str(tmp_path / "[cd].pkl")], tmp_path / "o", scores=scores).samples == 3
    write_pickle(tmp_path / "e.pkl", [dict(raw, trace_number=2)])
    with pytest.raises(TraceError, match="has trace number 2, as has"):
        pack([str(tmp_path / "[cde].pkl")], tmp_path / "p", scores=scores)


def test_split_by_file(tmp_path: Path) -> None:
    for i in range(10):
        write_pickle(tmp_path / "traces" / f"b{i}.pkl", [make_raw(f"q{i}", seed=i)])
    scores = write_scores(tmp_path / "s.csv", {f"q{i}": 0.0 for i in range(10)})
    options = PackOptions(split_by="file")
    report = pack([str(tmp_path / "traces" / "*")], tmp_path / "o", scores=scores, options=options)
    assert {name: entry.samples for name, entry in report.index.splits.items()} == {
        "train": 7,
        "val": 1,
        "test": 2,
    }


def test_missing_scores_are_dropped_or_kept_when_asked(tmp_path: Path) -> None:
    write_pickle(tmp_path / "t.pkl", raws_of(10))
    scores = write_scores(tmp_path / "s.csv", {f"q{i}": 1.0 for i in range(7)})
    for policy, samples, dropped, unlabelled in (("drop", 7, 3, 0), ("keep", 10, 0, 3)):
        report = pack(
            [str(tmp_path / "t.pkl")],
            tmp_path / policy,
            scores=scores,
            options=PackOptions(missing_score=policy),
        )
        assert (report.samples, report.dropped, report.unlabelled) == (samples, dropped, unlabelled)


def test_without_attention(tmp_path: Path) -> None:
    index = pack_list(tmp_path, raws_of(5), attention=())
    assert not index.has_member("edges_index.npy")
    assert "edges" not in index.fields


def nan_state(raws: list[dict[str, Any]]) -> None:
    raws[4]["hidden_states"][2][1, 3] = np.nan


def object_state(raws: list[dict[str, Any]]) -> None:
    raws[4]["hidden_states"][2] = np.full((9, 8), None)


def ragged(raws: list[dict[str, Any]]) -> None:
    raws[4]["hidden_states"][2] = raws[4]["hidden_states"][2][:-1]


def other_model(raws: list[dict[str, Any]]) -> None:
    raws[4] = make_raw("q4", seed=4, features=9)


def bad_attention(raws: list[dict[str, Any]]) -> None:
    raws[4]["attentions"][1][0, 2, 1] = np.inf


def scores_for_attention(raws: list[dict[str, Any]]) -> None:
    raws[4]["attentions"][1] = raws[4]["attentions"][1] - 5


def beyond_float32(raws: list[dict[str, Any]]) -> None:
    raws[4]["hidden_states"] = [h.astype(np.float64) for h in raws[4]["hidden_states"]]
    raws[4]["hidden_states"][1][0, 0] = 1e300


def huge_trace_number(raws: list[dict[str, Any]]) -> None:
    raws[4]["trace_number"] = 2**32


# (what is wrong, change, error, words)
WRONG: list[tuple[str, Callable[[list[dict[str, Any]]], object], type[WdsbenchError], str]] = [
    ("missing score", lambda raws: raws[4].update(question_id="new"), ScoreError, "question new"),
    ("NaN", nan_state, TraceError, "NaN"),
    ("object array", object_state, TraceError, "object"),
    ("ragged", ragged, TraceError, "differ in shape from layer to layer"),
    ("another model", other_model, TraceError, "3 layers of 9 features"),
    ("scores for attention", scores_for_attention, TraceError, "the weight of edge"),
    ("beyond float32", beyond_float32, TraceError, "layer 1 reaches 1e\\+300, float32 ends"),
    ("huge trace number", huge_trace_number, TraceError, "trace_number"),
    ("attention not finite", bad_attention, TraceError, "not finite"),
]


@pytest.mark.parametrize(
    ("change", "error", "words", "existing"),
    [
        pytest.param(
            *row,
            existing,
            marks=() if existing or number < 2 else FULL_ONLY,
            id=f"{name} in {'a' if existing else 'a new'} folder",
        )
        for number, (name, *row) in enumerate(WRONG)
        for existing in (True, False)
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    tmp_path: Path,
    change: Callable[..., object],
    error: type[Exception],
    words: str,
    existing: bool,
) -> None:
    raws = raws_of(6)
    change(raws)
    write_pickle(tmp_path / "t.pkl", raws)
    scores = write_scores(tmp_path / "s.csv", {f"q{i}": 1.0 for i in range(6)})
    out = tmp_path / "shards"
    if existing:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    with pytest.raises(error, match=words) as caught:
        pack([str(tmp_path / "t.pkl")], out, scores=scores, options=PackOptions(shard_mb=0.001))
    assert "t.pkl" in str(caught.value)
    assert "trace 4" in str(caught.value)
    if existing:
        assert folder_bytes(out) == {"notes.txt": b"mine"}
    else:
        assert not out.exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pickle(tmp_path / "t.pkl", raws_of(3))
    scores = write_scores(tmp_path / "s.csv", {f"q{i}": 1.0 for i in range(3)})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PackError, match="No space left on device"):
        pack([str(tmp_path / "t.pkl")], tmp_path / "out", scores=scores)
    assert not (tmp_path / "out").exists()


def test_a_data_set_is_never_overwritten(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=6)
    before = folder_bytes(packed.folder)
    with pytest.raises(PackError, match="already holds a data set"):
        DatasetWriter(packed.folder)
    assert folder_bytes(packed.folder) == before


def test_foreign_shards_are_never_removed(tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar").write_bytes(b"theirs")
    with pytest.raises(PackError, match="belong to no data set of wdsbench"):
        DatasetWriter(tmp_path)
    assert folder_bytes(tmp_path) == {"train-000000.tar": b"theirs"}


def killed_run(folder: Path, *, at_end: bool = False) -> None:
    """Let another process write a data set into ``folder`` and die midway, or before it unlocks."""
    code = f"""
import os
from pathlib import Path
from wdsbench.shards.format.index import Provenance
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.write.writer import DatasetWriter
writer = DatasetWriter(Path({str(folder)!r}), shard_mb=1e-6)
row = SampleRow("k", "q", 0, 1, 1, -1, 1.0, 1.0)
for split in ("train", "val"):
    writer.add(split, row, {{"meta.json": [b"{{}}"]}})
if {at_end}:
    writer._claim.commit = lambda: os._exit(9)
    writer.finish(fields={{}}, layers=[], provenance=Provenance())
writer._shards._flusher.wait()
writer._shards.start("test")
os._exit(9)
"""
    process = start_code(code)
    process.communicate(timeout=60)
    assert process.returncode == 9


def test_what_a_killed_run_left_is_cleared(tmp_path: Path) -> None:
    mine = {"notes.txt": b"mine", "samples-mine.bin": b"mine", ".notes.tmp": b"mine"}
    for name, data in mine.items():
        (tmp_path / name).write_bytes(data)
    killed_run(tmp_path)
    left = set(folder_bytes(tmp_path)) - set(mine)
    assert left >= {"train-000000.tar", "val-000000.tar", ".test-000000.tar.tmp"}
    DatasetWriter(tmp_path).abort()
    assert folder_bytes(tmp_path) == mine


def test_a_run_killed_after_its_index_is_a_data_set(tmp_path: Path) -> None:
    killed_run(tmp_path, at_end=True)
    before = set(folder_bytes(tmp_path))
    with pytest.raises(PackError, match="already holds a data set"):
        DatasetWriter(tmp_path)
    assert set(folder_bytes(tmp_path)) == before - {".wdsbench-unfinished"}


def test_a_failed_run_removes_its_own_files_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    mine = {"samples-mine.bin": b"precious", ".notes.tmp": b"precious"}
    for name, data in mine.items():
        (out / name).write_bytes(data)
    write_pickle(tmp_path / "t.pkl", raws_of(3))
    with pytest.raises(ScoreError):
        pack([str(tmp_path / "t.pkl")], out, options=PackOptions(missing_score="error"))
    assert folder_bytes(out) == mine


def test_two_runs_never_write_into_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    first = DatasetWriter(out)
    with pytest.raises(PackError, match="another process is writing"):
        DatasetWriter(out)
    first.abort()
    assert list(tmp_path.iterdir()) == []
    DatasetWriter(out).abort()


@pytest.mark.parametrize(
    "options",
    [
        {"missing_score": "ignore"},
        {"split_by": "day"},
        {"overflow": "wrap"},
        {"head_threshold": 1.5},
        {"attention": ("eyes",)},
        {"threshold": float("nan")},
        {"edge_rule": "top"},
        {"edge_rule": "top:2"},
        {"edge_rule": "best:0.1"},
    ],
)
def test_options_have_a_vocabulary(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not"):
        PackOptions(**options)


def test_a_pattern_is_enough(tmp_path: Path) -> None:
    """Raw traces need no label: those that have one are labelled, the others kept and counted."""
    for number, label in enumerate((None, 1, 0, None)):
        raw = make_raw(f"q{number}", seed=number)
        write_pickle(
            tmp_path / f"b{number}.pkl", [raw | ({} if label is None else {"label": label})]
        )
    report = pack([str(tmp_path / "*.pkl")], tmp_path / "shards")
    assert (report.samples, report.unlabelled, report.dropped) == (4, 2, 0)
    index = DatasetIndex.open(tmp_path / "shards")
    found = dict(
        zip(index.question_ids(np.arange(4)), index.columns["label"].tolist(), strict=True)
    )
    assert [found["q1"], found["q2"]] == [1.0, 0.0]
    assert np.isnan([found["q0"], found["q3"]]).all()
    assert index.file.provenance.missing_score == "keep"
    scores = write_scores(tmp_path / "s.csv", {"q0": 1.0})
    with pytest.raises(ScoreError, match="the score file has no score for it"):
        pack([str(tmp_path / "*.pkl")], tmp_path / "scored", scores=scores)
