"""One stored sample, decoded, against the raw trace it was packed from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Packed, make_dataset, make_raw, write_pickle
from shards.damage import Sample, load, npy, rewritten

from wdsbench import DecodeError, ShardError
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.format.kinds import KINDS, member_names, member_specs
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_shards
from wdsbench.shards.read.sample import StoredSample

ALL_KINDS = ("edges", "heads", "sketch", "full")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    options = PackOptions(attention=ALL_KINDS, threads=1)
    return make_dataset(tmp_path_factory.mktemp("data"), traces=12, options=options)


@pytest.fixture(scope="module")
def index(packed: Packed) -> DatasetIndex:
    return DatasetIndex.open(packed.folder)


@pytest.mark.parametrize("open_files", [False, True])
def test_every_kind_is_what_was_packed(
    packed: Packed, index: DatasetIndex, open_files: bool
) -> None:
    source = open_shards(index) if open_files else None
    for row in range(len(index)):
        sample = StoredSample(index, row, source, check_hash=True)
        raw: dict[str, Any] = packed.raws[index.question_id(row)]
        assert all(sample.has(kind) for kind in KINDS if kind != "image")
        np.testing.assert_array_equal(sample.states(), np.stack(raw["hidden_states"]))
        maps = sample.maps()
        assert maps is not None
        np.testing.assert_array_equal(maps, np.stack(raw["attentions"]))
        meta = sample.meta()
        assert meta["tokens"] == raw["tokens"]
        logprobs = sample.logprobs(meta)
        assert logprobs is not None
        np.testing.assert_array_equal(logprobs, raw["token_logprobs"])
        edges, heads, sketch = sample.edges(), sample.heads(), sample.sketch()
        assert edges is not None
        assert heads is not None
        assert sketch is not None
        assert len(edges.pointer) == sample.sizes.layers + 1
        assert len(heads.pointer) == sample.sizes.layers * sample.sizes.heads + 1
        for head in range(sample.sizes.heads):  # layer 1: list H + head
            first, last = heads.pointer[sample.sizes.heads + head :][:2]
            source_token, target = heads.index[:, first:last]
            weights = maps[1, head][target, source_token]
            np.testing.assert_array_equal(heads.weight[first:last], weights)


def test_scales_are_applied(tmp_path: Path) -> None:
    raw = make_raw("q", seed=0, dtype=np.float32)
    raw["hidden_states"][1] *= 1e5
    write_pickle(tmp_path / "t.pkl", [raw])
    pack([str(tmp_path / "t.pkl")], tmp_path / "out")
    sample = StoredSample(DatasetIndex.open(tmp_path / "out"), 0)
    scales = sample.scales()
    assert scales is not None
    assert scales[0] == 1 < scales[1]
    assert sample.array("hidden").dtype == np.float16
    assert sample.states().dtype == np.float32
    np.testing.assert_allclose(sample.states(), raw["hidden_states"], rtol=1e-3, atol=1e-3)


def test_what_is_not_stored_is_none_or_refused_with_a_remedy(tmp_path: Path) -> None:
    folder = make_dataset(tmp_path, traces=4, options=PackOptions(attention=())).folder
    sample = StoredSample(DatasetIndex.open(folder), 0)
    assert sample.edges() is sample.heads() is sample.sketch() is sample.maps() is None
    assert sample.scales() is None
    for kind in ALL_KINDS:
        with pytest.raises(DecodeError, match=f"has no {kind}; repack with --attention {kind}"):
            sample.array(kind)


def _edge(sample: Sample) -> None:
    array = load(sample.members["edges_index.npy"])
    array[1, 0] = 200
    sample.members["edges_index.npy"] = npy(array)


def _cut(member: str) -> Any:
    def change(sample: Sample) -> None:
        sample.members[member] = npy(load(sample.members[member])[..., 1:])

    return change


def _meta(data: bytes) -> Any:
    return lambda sample: sample.members.update({"meta.json": data})


DAMAGE: list[tuple[str, Any, str, str, int, str]] = [
    ("states", _cut("hidden.npy"), "states", "hidden.npy", 0, r"expected \(3, \d+, 8\) of <f2"),
    ("maps", _cut("attention.npy"), "maps", "attention.npy", 0, "expected"),
    ("sketch", _cut("sketch.npy"), "sketch", "sketch.npy", 0, r"expected \(3, 2, \d+, 4\)"),
    ("pointer", _cut("heads_ptr.npy"), "heads", "heads_ptr.npy", 0, r"expected \(7,\) of <u4"),
    ("an edge", _edge, "edges", "edges_index.npy", 0, "edge"),
    ("not JSON", _meta(b'{"a": '), "meta", "meta.json", 6, "not JSON"),
    ("a list", _meta(b"[]"), "meta", "meta.json", 0, "a JSON list, expected an object"),
    ("not npy", lambda s: s.members.update({"sketch.npy": b"x" * 200}), "sketch", "sketch.npy", 0,
     "magic"),
]  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE, ids=[row[0] for row in DAMAGE])
def test_damage_names_shard_member_and_byte(packed: Packed, tmp_path: Path, what: Any) -> None:
    _, change, method, member, byte, words = what
    out = rewritten(packed.folder, tmp_path / "out", lambda samples: change(samples[2]))
    index = DatasetIndex.open(out)
    with pytest.raises(DecodeError, match=words) as caught:
        getattr(StoredSample(index, 2), method)()
    place = index.place(2, member)
    assert (caught.value.shard, caught.value.member) == (place.shard, place.name)
    if method != "edges":
        assert caught.value.offset_bytes == place.offset_bytes + byte


@pytest.mark.parametrize("open_files", [False, True])
def test_bytes_are_compared_with_their_hash(
    packed: Packed, tmp_path: Path, open_files: bool
) -> None:
    out = rewritten(packed.folder, tmp_path / "out", lambda _: None)
    index = DatasetIndex.open(out)
    place = index.place(1, "hidden.npy")
    with Path(place.shard).open("r+b") as file:
        file.seek(place.offset_bytes + 200)
        file.write(b"\xff")
    source = open_shards(index) if open_files else None
    StoredSample(index, 1, source).states()
    with pytest.raises(DecodeError, match=r"not those that were packed \(XXH3"):
        StoredSample(index, 1, source, check_hash=True).states()


def test_a_cut_shard(packed: Packed, tmp_path: Path) -> None:
    out = rewritten(packed.folder, tmp_path / "out", lambda _: None)
    index = DatasetIndex.open(out)
    place = index.place(1, "hidden.npy")
    os.truncate(place.shard, place.offset_bytes + 10)
    with pytest.raises(ShardError, match="the file ends here") as caught:
        StoredSample(index, 1).states()
    assert caught.value.offset_bytes == place.offset_bytes + 10


def test_the_table_of_kinds_describes_every_member(index: DatasetIndex) -> None:
    assert list(member_names()) == sorted(member_specs())
    for row in range(len(index)):
        sample = StoredSample(index, row)
        for name, spec in member_specs().items():
            if sample.has_member(name) and name.endswith(".npy"):
                array = load(sample.read(name))
                assert spec.mismatch(array.dtype.str, array.shape, sample.sizes) is None
    assert json.loads(index.file.to_bytes())["fields"].keys() == KINDS.keys() - {"image"}
