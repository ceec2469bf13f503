"""Samples whose members are not read yet, in a user's own pipeline."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from builders import Packed, make_dataset, make_raw, write_pickle, write_scores
from trials import FULL_ONLY, full_only

from wdsbench import DecodeError, Member, ShardError
from wdsbench.pack import pack
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_index
from wdsbench.stream import (
    EpochShuffle,
    PieceList,
    SampleMembers,
    SampleRows,
    load_member,
    read_member,
)


def pipeline(index: DatasetIndex, *stages: Any, epoch: int = 0) -> Any:
    pieces = PieceList(index, None)
    pieces.epoch = epoch
    return webdataset.DataPipeline(
        pieces,
        webdataset.split_by_node,
        webdataset.split_by_worker,
        SampleRows(index),
        *stages,
    )


def read_states(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "hidden": load_member(sample["hidden.npy"]).copy()}


def test_members_equal_what_was_packed(packed: Packed, index: DatasetIndex) -> None:
    seen = []
    for sample in pipeline(index, SampleMembers(index)):
        question_id = sample["question_id"]
        raw = packed.raws[question_id]
        states = load_member(sample["hidden.npy"])
        assert states.dtype == np.float16
        assert not states.flags.writeable
        np.testing.assert_array_equal(states, np.stack(raw["hidden_states"]))
        assert "hidden_scale.npy" not in sample
        meta = json.loads(read_member(sample["meta.json"]))
        assert meta["question_id"] == question_id
        pointer = load_member(sample["edges_ptr.npy"])
        assert load_member(sample["edges_index.npy"]).shape == (2, pointer[-1])
        assert load_member(sample["edges_weight.npy"]).shape == (pointer[-1],)
        assert sample["score"] == np.float32(packed.scores[question_id])
        assert sample["label"] == float(packed.scores[question_id] < 0.5)
        assert sample["token_count"] == len(raw["tokens"])
        assert sample["prompt_length"] == raw["prompt_length"]
        seen.append(question_id)
    assert sorted(seen) == sorted(packed.raws)


def test_names_are_webdatasets(packed: Packed, index: DatasetIndex) -> None:
    ours = {
        sample["__key__"]: sample for sample in map(SampleMembers(index).sample, range(len(index)))
    }
    seen: set[str] = set()
    for path in packed.folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            for entry in tar:
                key, suffix = webdataset.tariterators.base_plus_ext(entry.name)
                member = ours[key][suffix]
                data = tar.extractfile(entry)
                assert data is not None
                assert member == Member(str(path), entry.name, entry.offset_data, entry.size)
                assert read_member(member) == data.read()
                assert ours[key]["__url__"] == str(path)
                seen.add(f"{key}.{suffix}")
    every = {f"{key}.{name}" for key in ours for name in ours[key] if name in member_names()}
    assert seen == every


@pytest.mark.parametrize(
    ("shuffle", "workers"),
    [
        (webdataset.shuffle(20), 0),
        (EpochShuffle(20), 0),
        (EpochShuffle(20), 2),
        pytest.param(webdataset.shuffle(20), 2, marks=FULL_ONLY),
    ],
)
def test_in_a_data_loader(packed: Packed, index: DatasetIndex, shuffle: Any, workers: int) -> None:
    stages = (SampleMembers(index), shuffle, webdataset.map(read_states))
    loader = webdataset.WebLoader(pipeline(index, *stages), batch_size=None, num_workers=workers)
    seen = []
    for sample in loader:
        raw = packed.raws[sample["question_id"]]
        states = np.asarray(sample["hidden"])
        np.testing.assert_array_equal(states, np.stack(raw["hidden_states"]))
        seen.append(sample["question_id"])
    assert sorted(seen) == sorted(packed.raws)


@full_only
def test_in_spawned_workers(packed: Packed, index: DatasetIndex) -> None:
    import multiprocessing

    from torch.utils.data import DataLoader

    stages = (SampleMembers(index), EpochShuffle(20))
    loader = DataLoader(
        pipeline(index, *stages),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=multiprocessing.get_context("spawn"),
    )
    seen = [sample["question_id"] for sample in loader]
    assert sorted(seen) == sorted(packed.raws)


def test_stages_can_be_pickled(packed: Packed, index: DatasetIndex) -> None:
    stages = pickle.loads(pickle.dumps(pipeline(index, SampleMembers(index), EpochShuffle(20))))
    seen = [sample["question_id"] for sample in stages]
    assert sorted(seen) == sorted(packed.raws)


def test_epoch_shuffle_of_samples(index: DatasetIndex) -> None:
    def order(epoch: int) -> list[str]:
        shuffle = EpochShuffle(20)
        shuffle.epoch = epoch
        stages = (SampleMembers(index), shuffle)
        return [sample["__key__"] for sample in pipeline(index, *stages, epoch=epoch)]

    assert order(0) == order(0) != order(1)
    assert sorted(order(0)) == sorted(order(1))


def test_a_sample_is_small(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=2, tokens=200, features=512)
    index = DatasetIndex.open(packed.folder)
    sample = SampleMembers(index).sample(0)
    assert sample["hidden.npy"].size_bytes > 500_000
    assert len(pickle.dumps(sample)) < 2_000
    assert len(pickle.dumps(SampleMembers(index))) < 2_000
    assert pickle.loads(pickle.dumps(sample)) == sample
    again = pickle.loads(pickle.dumps(SampleMembers(index)))
    assert again.sample(0) == sample


def test_members_are_read_on_request(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=10)
    index = DatasetIndex.open(packed.folder)
    for path in packed.folder.glob("*.tar"):
        path.unlink()
    samples = list(SampleMembers(index)(range(10)))
    assert len(samples) == 10
    with pytest.raises(ShardError, match="cannot read: No such file") as caught:
        read_member(samples[3]["hidden.npy"])
    assert caught.value.shard == samples[3]["__url__"]
    assert caught.value.member == samples[3]["hidden.npy"].name


def test_tars_without_an_index(packed: Packed) -> None:
    index = open_index(str(packed.folder / "train-*.tar"))
    for row in range(len(index)):
        sample = SampleMembers(index).sample(row)
        states = load_member(sample["hidden.npy"])
        assert states.shape[0] == 3
        assert json.loads(read_member(sample["meta.json"]))["question_id"] in packed.raws


def test_scales_and_missing_members(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i}", seed=i, dtype=np.float32) for i in range(6)]
    raws[1]["hidden_states"][2] *= np.float32(1e6)
    del raws[2]["attentions"]
    write_pickle(tmp_path / "t.pkl", raws)
    scores = write_scores(tmp_path / "s.csv", {raw["question_id"]: 1.0 for raw in raws})
    pack([str(tmp_path / "t.pkl")], tmp_path / "shards", scores=scores)
    index = DatasetIndex.open(tmp_path / "shards")
    samples = {sample["question_id"]: sample for sample in SampleMembers(index)(range(6))}
    assert [i for i, sample in samples.items() if "hidden_scale.npy" in sample] == ["q1"]
    assert [i for i, sample in samples.items() if "edges_ptr.npy" not in sample] == ["q2"]
    scale = load_member(samples["q1"]["hidden_scale.npy"])
    assert scale.dtype == np.float32
    states = load_member(samples["q1"]["hidden.npy"]).astype(np.float32) * scale[:, None, None]
    np.testing.assert_allclose(states, np.stack(raws[1]["hidden_states"]), rtol=1e-3, atol=1e-3)


def test_members_without_elements(tmp_path: Path) -> None:
    raws = [make_raw(f"q{i}", seed=i, tokens=1) for i in range(3)]
    for raw in raws:
        del raw["prompt_length"], raw["token_logprobs"]
    write_pickle(tmp_path / "t.pkl", raws)
    scores = write_scores(tmp_path / "s.csv", {raw["question_id"]: 1.0 for raw in raws})
    pack([str(tmp_path / "t.pkl")], tmp_path / "shards", scores=scores)
    sample = SampleMembers(DatasetIndex.open(tmp_path / "shards")).sample(0)
    assert load_member(sample["edges_index.npy"]).shape == (2, 0)
    assert load_member(sample["edges_weight.npy"]).shape == (0,)


@pytest.fixture
def member(packed: Packed, tmp_path: Path) -> Member:
    """Return a member of a copy of the data set."""
    index = DatasetIndex.open(Path(shutil.copytree(packed.folder, tmp_path / "shards")))
    member = SampleMembers(index).sample(7)["hidden.npy"]
    assert isinstance(member, Member)
    return member


# (damage, bytes from the member's start, new bytes, words, places of the error)
DAMAGE = [
    ("magic", 0, b"XX", "not an npy member", range(0, 6)),
    ("grammar", 10, b"?", "expected '{'", range(10, 11)),
    ("dtype", 21, b"<c8", "", range(8, 128)),
    ("object", 21, b"|O8", "", range(8, 128)),
    ("size", 21, b"<f4", "needs .* bytes, the member has", range(0, 129)),
]


@pytest.mark.parametrize(
    ("at", "data", "words", "places"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE]
)
def test_damage_names_its_place(
    member: Member, at: int, data: bytes, words: str, places: range
) -> None:
    with Path(member.shard).open("r+b") as file:
        file.seek(member.offset_bytes + at)
        file.write(data)
    with pytest.raises(DecodeError) as caught:
        load_member(member)
    error = caught.value
    assert (error.shard, error.member) == (member.shard, member.name)
    assert error.offset_bytes is not None
    assert error.offset_bytes - member.offset_bytes in places
    if words:
        assert error.detail
        assert re.search(words, str(error))


@pytest.mark.parametrize("left", [0, 1, 100, 127, 128, 200])
def test_a_cut_names_its_place(member: Member, left: int) -> None:
    os.truncate(member.shard, member.offset_bytes + left)
    for read in (read_member, load_member):
        with pytest.raises(ShardError, match="the file ends here") as caught:
            read(member)
        error = caught.value
        assert (error.shard, error.member) == (member.shard, member.name)
        assert error.offset_bytes == member.offset_bytes + left
        assert f"{member.size_bytes - left} bytes of the member are missing" in str(error)


def test_a_file_that_ends_before_the_member(member: Member) -> None:
    os.truncate(member.shard, 100)
    with pytest.raises(ShardError, match=f"{member.size_bytes} bytes of the member are missing"):
        read_member(member)


def test_a_folder_in_place_of_a_shard(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="cannot read: Is a directory"):
        read_member(Member(str(tmp_path), "x.npy", 0, 10))
