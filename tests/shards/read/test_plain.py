"""Tars without an index: ours with the index taken away, and webdataset's own."""

from __future__ import annotations

import io
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from builders import Packed, make_dataset
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.errors import DecodeError, ShardError, WdsbenchError
from wdsbench.pack import PackOptions
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_index


@pytest.fixture
def bare(packed: Packed, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(packed.folder, tmp_path / "bare"))
    (folder / "index.json").unlink()
    return folder


@pytest.mark.parametrize("kinds", [("heads",), ("sketch",), ("full", "sketch", "heads", "edges")])
def test_attention_of_single_heads(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    packed = make_dataset(tmp_path, traces=12, options=PackOptions(attention=kinds, threads=1))
    known = DatasetIndex.open(packed.folder)
    (packed.folder / "index.json").unlink()
    tars = f"{packed.folder}/*.tar"
    found = open_index(tars)
    assert found.num_heads == known.num_heads > 0
    for name, entry in known.file.fields.items():
        if name in kinds:
            assert found.file.fields[name].shape == entry.shape
    if "heads" in kinds:
        options: dict[str, Any] = {"split": None, "layout": "union-graph", "shuffle": 0}
        graphs = [batch.graph for batch in TraceLoader(tars, **options)]
        assert sum(graph.num_graphs for graph in graphs) == len(packed.raws)
        assert graphs[0].edge_attr.shape[1] == known.num_layers * known.num_heads
        assert any(graph.edge_attr.any() for graph in graphs)


def test_the_pass_finds_what_the_index_knew(packed: Packed, bare: Path) -> None:
    known, found = DatasetIndex.open(packed.folder), open_index(str(bare / "*.tar"))
    assert found.counts == known.counts
    assert found.file.fields["hidden"] == known.file.fields["hidden"]
    for name, column in known.columns.items():
        if not name.endswith("xxh3") and name not in ("label", "score"):
            np.testing.assert_array_equal(found.columns[name], column, err_msg=name)
    assert np.isnan(found.columns["label"]).all()


@pytest.mark.parametrize(
    ("layout", "workers"),
    [("pad", 0), ("graph", 0), ("pad", 2), pytest.param("graph", 2, marks=FULL_ONLY)],
)
def test_batches_are_the_same(packed: Packed, bare: Path, layout: str, workers: int) -> None:
    options: dict[str, Any] = {"split": None, "tokens": "all", "layout": layout, "batch_size": 7}
    with_index = TraceLoader(packed.folder, **options)
    without = TraceLoader(f"{bare}/*.tar", num_workers=workers, **options)
    if workers:
        by_key = {key: i for batch in with_index for i, key in enumerate(batch.keys)}
        assert sorted(key for batch in without for key in batch.keys) == sorted(by_key)
        return
    for ours, theirs in zip(with_index, without, strict=True):
        assert ours.keys == theirs.keys
        assert ours.question_ids == theirs.question_ids
        if layout == "graph":
            assert (ours.graph.edge_index == theirs.graph.edge_index).all()
            assert (ours.graph.x == theirs.graph.x).all()
        else:
            assert ours.hidden is not None
            assert theirs.hidden is not None
            assert (ours.hidden == theirs.hidden).all()


def test_braces_lists_and_single_files(bare: Path) -> None:
    shards = sorted(bare.glob("train-*.tar"))
    assert len(shards) > 3
    braces = open_index(f"{bare}/train-{{000000..000002}}.tar")
    assert [Path(entry.url) for entry in braces.file.shardlist] == [p.resolve() for p in shards[:3]]
    assert len(open_index(shards[:3])) == len(braces)
    assert open_index(shards[0]).file.shardlist[0].nsamples > 0


def test_it_travels_as_its_list_of_tars(bare: Path) -> None:
    index = open_index(f"{bare}/val-*.tar")
    again = pickle.loads(pickle.dumps(index))
    np.testing.assert_array_equal(again.columns["key"], index.columns["key"])


# webdataset's writer is closed by its context, the file it opened by the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_webdataset_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = {f"dir/k{i}": rng.normal(size=(2, i + 1, 4)).astype(np.float32) for i in range(6)}
    with webdataset.TarWriter(str(tmp_path / "theirs.tar")) as writer:
        for key, array in states.items():
            meta = {"question_id": f"q-{key}", "label": 1, "prompt_length": 1}
            writer.write({"__key__": key, "hidden.npy": array, "meta.json": meta, "txt": "x"})
    loader = TraceLoader(tmp_path / "theirs.tar", tokens="all", layout="pad")
    (batch,) = loader
    assert sorted(batch.keys) == sorted(states)
    assert batch.label.tolist() == [1.0] * 6
    assert batch.lengths is not None
    for i, key in enumerate(batch.keys):
        assert batch.question_ids[i] == f"q-{key}"
        count = int(batch.lengths[i])
        np.testing.assert_array_equal(batch.hidden[i, :, :count], states[key])


def tar_of(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def npy(*shape: int, dtype: Any = np.float16) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(shape, dtype))
    return stream.getvalue()


GOOD = npy(2, 3, 4)

# (what is wrong, members, error, words)
WRONG: list[tuple[str, list[tuple[str, bytes]], type[WdsbenchError], str]] = [
    ("nothing", [], ShardError, "no sample in 1 tar files"),
    ("nothing of ours", [("README", b"x")], ShardError, "no sample"),
    ("no states", [("a.txt", b"x")], ShardError, "sample a has no hidden.npy or image.npy"),
    (
        "interleaved",
        [("a.hidden.npy", GOOD), ("b.hidden.npy", GOOD), ("a.txt", b"")],
        ShardError,
        "key a comes again",
    ),
    ("twice", [("a.hidden.npy", GOOD)] * 2, ShardError, "in its sample twice"),
    ("case", [("a.hidden.npy", GOOD), ("a.Hidden.npy", GOOD)], ShardError, "in its sample twice"),
    ("not npy", [("a.hidden.npy", b"x" * 200)], DecodeError, "not an npy member"),
    ("two axes", [("a.hidden.npy", npy(2, 3))], DecodeError, r"expected three axes"),
    (
        "shapes differ",
        [("a.hidden.npy", GOOD), ("b.hidden.npy", npy(3, 3, 4))],
        DecodeError,
        r"expected \(2, T, 4\) of <f2",
    ),
    (
        "dtypes differ",
        [("a.hidden.npy", GOOD), ("b.hidden.npy", npy(2, 3, 4, dtype=np.float32))],
        DecodeError,
        "of <f4, expected",
    ),
    ("meta", [("a.hidden.npy", GOOD), ("a.meta.json", b"[1")], DecodeError, "not the JSON"),
    ("meta list", [("a.hidden.npy", GOOD), ("a.meta.json", b"[]")], DecodeError, "not an object"),
]


@pytest.mark.parametrize(
    ("members", "error", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_wrong_tars(
    tmp_path: Path, members: list[tuple[str, bytes]], error: type[Exception], words: str
) -> None:
    path = tar_of(tmp_path / "x.tar", members)
    with pytest.raises(error, match=words):
        open_index(path)


def test_damage_is_named(bare: Path) -> None:
    shard = sorted(bare.glob("val-*.tar"))[0]
    with shard.open("r+b") as file:
        file.seek(3)
        file.write(b"?")
    with pytest.raises(ShardError, match="header checksum") as caught:
        open_index(f"{bare}/val-*.tar")
    assert (caught.value.shard, caught.value.offset_bytes) == (str(shard), 148)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("s3://bucket/x.tar", "URLs are not supported"),
        ("pipe:cat x.tar", "URLs are not supported"),
        ("/nowhere/x-{0..1}.tar", "no such tar file"),
        ("/nowhere/*.tar", "no such tar file"),
        ("/nowhere", "no data set here"),
    ],
)
def test_nothing_there(source: str, words: str) -> None:
    with pytest.raises(ShardError, match=words):
        open_index(source)


def test_hashes_need_an_index(bare: Path) -> None:
    with pytest.raises(ValueError, match="have no hashes"):
        TraceLoader(f"{bare}/val-*.tar", split="val", verify="hash")
