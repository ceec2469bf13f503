"""Opening an index: what is damaged or foreign is refused with a sentence, never half read."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import Packed

from wdsbench.errors import ShardError
from wdsbench.shards.read.index import DatasetIndex


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "index.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_counts_agree_with_what_was_packed(packed: Packed) -> None:
    index = DatasetIndex.open(packed.folder)
    assert len(index) == sum(index.counts.values()) == len(packed.raws)
    assert (index.num_layers, index.num_features) == (3, 8)
    labels = [score < 0.5 for score in packed.scores.values()]
    assert sum(entry.hallucinated for entry in index.file.splits.values()) == sum(labels)
    assert {index.question_id(row) for row in range(len(index))} == set(packed.raws)
    assert index.has_member("hidden.npy")
    assert not index.has_member("hidden_scale.npy")


def test_an_index_travels_as_its_path(packed: Packed) -> None:
    index = DatasetIndex.open(packed.folder)
    data = pickle.dumps(index)
    assert len(data) < 1000
    assert pickle.loads(data).key(3) == index.key(3)


def test_an_index_of_before_labels_had_a_source_opens(packed: Packed, copy: Path) -> None:
    assert DatasetIndex.open(packed.folder).labels is not None
    edit(copy, lambda content: content.pop("labels"))
    index = DatasetIndex.open(copy)
    assert index.labels is None
    assert index.file.splits == DatasetIndex.open(packed.folder).file.splits


def damage_table(folder: Path) -> None:
    table = next(folder.glob("samples-*.bin"))
    table.write_bytes(table.read_bytes()[:-1])


def flip_table(folder: Path) -> None:
    table = next(folder.glob("samples-*.bin"))
    data = bytearray(table.read_bytes())
    data[100] ^= 1
    table.write_bytes(data)


# (what is broken, how, words of the error)
BROKEN: list[tuple[str, Callable[[Path], object], str]] = [
    ("no index", lambda f: (f / "index.json").unlink(), "no data set here"),
    ("not JSON", lambda f: (f / "index.json").write_text("{"), "not a valid index"),
    ("cut table", damage_table, "index.json says"),
    ("flipped table bit", flip_table, r"not the one that was packed \(XXH3\)"),
    ("not UTF-8", lambda f: (f / "index.json").write_bytes(b'{"a": "\xff"}'), "not a valid index"),
    ("no table", lambda f: next(f.glob("samples-*.bin")).unlink(), "cannot open the table"),
    ("other format", lambda f: edit(f, lambda c: c.update(wdsbench_format=9)), "format 9"),
    ("unknown key", lambda f: edit(f, lambda c: c.update(x=1)), "x: Extra inputs"),
    (
        "column outside",
        lambda f: edit(f, lambda c: c["table"]["columns"][0].update(offset_bytes=10**9)),
        "column key does not fit",
    ),
    (
        "object column",
        lambda f: edit(f, lambda c: c["table"]["columns"][0].update(dtype="|O")),
        "column key does not fit",
    ),
    (
        "no such dtype",
        lambda f: edit(f, lambda c: c["table"]["columns"][0].update(dtype="x9")),
        "unknown dtype 'x9'",
    ),
    (
        "states as bfloat16",
        lambda f: edit(f, lambda c: c["fields"]["hidden"].update(dtype="bf16")),
        "stored as 'bf16', which NumPy does not know; pack again",
    ),
    (
        "missing column",
        lambda f: edit(f, lambda c: c["table"]["columns"].pop(0)),
        "column key: not one entry",
    ),
    (
        "more samples than rows",
        lambda f: edit(f, lambda c: c["shardlist"][0].update(nsamples=10**6)),
        "not one entry",
    ),
    (
        "table elsewhere",
        lambda f: edit(f, lambda c: c["table"].update(file="../../etc/passwd")),
        "leaves the folder",
    ),
]


@pytest.mark.parametrize(
    ("breakage", "words"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_broken(copy: Path, breakage: Callable[[Path], object], words: str) -> None:
    breakage(copy)
    with pytest.raises(ShardError, match=words):
        DatasetIndex.open(copy)
