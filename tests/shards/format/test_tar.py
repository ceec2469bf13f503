"""Shards of ours as others see them: tarfile, GNU tar, webdataset; and their bytes."""

from __future__ import annotations

import gc
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset
import xxhash
from builders import Packed

from wdsbench.errors import PackError
from wdsbench.shards.format.tar import MEMBER_LIMIT_BYTES, TarWriter, ustar_header
from wdsbench.shards.read.index import DatasetIndex


def shards(packed: Packed) -> list[Path]:
    return sorted(packed.folder.glob("*.tar"))


def test_headers_are_plain_ustar_and_say_nothing_of_the_machine(packed: Packed) -> None:
    for shard in shards(packed):
        raw = shard.read_bytes()
        assert raw[257:265] == b"ustar\x0000"
        with tarfile.open(shard) as tar:
            members = tar.getmembers()
            assert tar.pax_headers == {}
        for member in members:
            assert member.isreg()
            assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")
            assert not member.pax_headers


def test_members_of_a_key_are_contiguous_sorted_and_aligned(packed: Packed) -> None:
    for shard in shards(packed):
        with tarfile.open(shard) as tar:
            members = tar.getmembers()
        keys = [member.name.split(".", 1)[0] for member in members]
        runs = [key for i, key in enumerate(keys) if i == 0 or keys[i - 1] != key]
        assert len(runs) == len(set(runs))
        for key in runs:
            names = [member.name for member in members if member.name.startswith(f"{key}.")]
            assert names == sorted(names)
        for member in members:
            if member.name.endswith(".npy"):
                data = shard.read_bytes()[member.offset_data : member.offset_data + member.size]
                header = 10 + int.from_bytes(data[8:10], "little")
                assert (member.offset_data + header) % 64 == 0


def test_the_index_tells_where_every_member_lies(packed: Packed) -> None:
    index = DatasetIndex.open(packed.folder)
    for row in range(len(index)):
        shard = index.shard_path(int(index.columns["shard"][row]))
        with tarfile.open(shard) as tar:
            for suffix in ("hidden.npy", "edges_index.npy", "edges_ptr.npy", "meta.json"):
                member = tar.getmember(index.member_name(row, suffix))
                stream = tar.extractfile(member)
                assert stream is not None
                data = stream.read()
                assert int(index.member(suffix, "offset")[row]) == member.offset_data
                assert int(index.member(suffix, "size")[row]) == member.size
                assert int(index.member(suffix, "xxh3")[row]) == xxhash.xxh3_64_intdigest(data)


def test_shard_hashes_sizes_and_counts(packed: Packed) -> None:
    file = DatasetIndex.open(packed.folder).file
    assert [entry.url for entry in file.shardlist] == sorted(
        (path.name for path in shards(packed)),
        key=lambda name: (("train", "val", "test").index(name.split("-")[0]), name),
    )
    for entry in file.shardlist:
        data = (packed.folder / entry.url).read_bytes()
        assert entry.filesize == len(data)
        assert entry.xxh3 == xxhash.xxh3_64_hexdigest(data)
        assert data.endswith(bytes(1024))


# webdataset leaves the files it has read to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_every_sample(packed: Packed) -> None:
    urls = [str(path) for path in shards(packed)]
    seen = set()
    for sample in webdataset.WebDataset(urls, shardshuffle=False).decode():
        question_id = sample["meta.json"]["question_id"]
        raw = packed.raws[question_id]
        np.testing.assert_array_equal(sample["hidden.npy"], np.stack(raw["hidden_states"]))
        assert sample["edges_ptr.npy"][-1] == sample["edges_weight.npy"].size
        assert sample["meta.json"]["tokens"] == raw["tokens"]
        assert sample["meta.json"]["token_texts"] == raw["tokens_decoded"]
        logprobs = np.array(sample["meta.json"]["token_logprobs"], np.float32)
        np.testing.assert_array_equal(logprobs, raw["token_logprobs"])
        seen.add(question_id)
    assert seen == set(packed.raws)
    gc.collect()


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar program")
def test_tar_lists_every_shard(packed: Packed) -> None:
    for shard in shards(packed):
        done = subprocess.run(["tar", "tf", shard], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        with tarfile.open(shard) as tar:
            assert done.stdout.split() == tar.getnames()


def test_index_is_a_superset_of_the_wids_shard_list(packed: Packed) -> None:
    content = json.loads((packed.folder / "index.json").read_text())
    assert content["__kind__"] == "wids-shard-index-v1"
    assert content["wids_version"] == 1
    assert {"url", "nsamples"} <= set(content["shardlist"][0])


def test_a_member_of_eight_gibibytes_is_refused() -> None:
    writer = TarWriter(io.BytesIO())
    piece = np.zeros(2**20, np.uint8)
    with pytest.raises(PackError, match=r"a tar member ends below 8589934592 \(8 GiB\)"):
        writer.add("big.npy", [piece] * (MEMBER_LIMIT_BYTES // 2**20))
    assert writer.size_bytes == 0


@pytest.mark.parametrize("name", ["a.npy", "x" * 100, "", "é.json"])
@pytest.mark.parametrize("size", [0, 7, 511, 8**11 - 1])
def test_headers_are_those_of_tarfile(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    assert ustar_header(name, size) == info.tobuf(tarfile.USTAR_FORMAT)


def test_a_name_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="has 101 bytes; must have at most 100"):
        ustar_header("x" * 101, 1)
