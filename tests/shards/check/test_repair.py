"""What is whole is taken over byte for byte; what is not is listed; nothing is done in place."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from builders import Packed, make_dataset
from shards.damage import BLOCK, flip, spot
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.errors import PackError, ShardError
from wdsbench.shards.check.repair import repair_dataset
from wdsbench.shards.check.verify import verify_dataset
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.format.table import write_table
from wdsbench.shards.read.index import DatasetIndex


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=16, shard_mb=0.03)


def content(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return key -> member -> bytes."""
    index = DatasetIndex.open(folder)
    found: dict[str, dict[str, bytes]] = {}
    for row in range(len(index)):
        places = {member: spot(index, row, member) for member in member_names()}
        found[index.key(row)] = {
            member: place.shard.read_bytes()[place.offset : place.offset + place.size]
            for member, place in places.items()
            if place.size
        }
    return found


def lost_table(folder: Path) -> list[dict[str, str]]:
    with (folder / "lost.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_torn_shard(packed: Packed, copy: Path, tmp_path: Path) -> None:
    where = spot(copy, 2, "hidden.npy")
    with where.shard.open("r+b") as file:
        file.truncate(where.offset + where.size // 2)
    damaged = bytes_of(copy)
    report = repair_dataset(copy, tmp_path / "out")
    assert bytes_of(copy) == damaged
    before, after = DatasetIndex.open(copy), DatasetIndex.open(tmp_path / "out")
    in_shard = before.file.shardlist[0].nsamples
    lost = [before.key(row) for row in range(2, in_shard)]
    assert [key for key, _, _ in report.lost] == lost
    assert report.samples == len(after) == 16 - len(lost)
    assert report.damaged_shards == [where.shard.name]
    whole = content(packed.folder)
    assert content(tmp_path / "out") == {k: v for k, v in whole.items() if k not in lost}
    rows = lost_table(tmp_path / "out")
    assert [row["question_id"] for row in rows] == [
        before.question_id(row) for row in range(2, in_shard)
    ]
    assert {row["shard"] for row in rows} == {where.shard.name}
    assert "bytes are missing" in rows[0]["reason"]
    assert after.file.provenance.model_dump(mode="json")["repaired"] == {
        "samples_before": 16,
        "samples": 16 - len(lost),
        "lost": len(lost),
        "lost_before": 0,
        "shards": [where.shard.name],
        "list": "lost.csv",
    }
    assert after.file.provenance.inputs == before.file.provenance.inputs
    assert after.labels == before.labels
    assert verify_dataset(tmp_path / "out").sound
    assert sum(len(batch) for batch in TraceLoader(tmp_path / "out", split=None)) == len(after)


def test_labels_and_order_stay(copy: Path, tmp_path: Path) -> None:
    where = spot(copy, 5, "sketch.npy")
    flip(where.shard, where.offset + 140)
    report = repair_dataset(copy, tmp_path / "out")
    assert len(report.lost) == 1
    before, after = DatasetIndex.open(copy), DatasetIndex.open(tmp_path / "out")
    kept = [row for row in range(16) if row != 5]
    for name in ("key", "split", "trace", "tokens", "state_tokens", "prompt_length"):
        assert (after.columns[name] == before.columns[name][kept]).all()
    for name in ("label", "score"):
        assert after.columns[name].tobytes() == before.columns[name][kept].tobytes()
    again = tmp_path / "out"
    where = spot(again, 0, "hidden.npy")
    flip(where.shard, where.offset + 140)
    assert repair_dataset(again, tmp_path / "again").samples == 14
    repaired = DatasetIndex.open(tmp_path / "again").file.provenance.model_dump(mode="json")[
        "repaired"
    ]
    assert (repaired["lost"], repaired["lost_before"]) == (1, 1)


@pytest.mark.parametrize(
    "damage", ["header", "front", *(pytest.param(d, marks=FULL_ONLY) for d in ("padding", "end"))]
)
def test_damage_beside_the_members_costs_nothing(
    packed: Packed, copy: Path, tmp_path: Path, damage: str
) -> None:
    where = spot(copy, 1, "meta.json")
    if damage == "header":
        flip(where.shard, where.offset - BLOCK + 3)
    elif damage == "padding":
        flip(where.shard, where.end - 1)
    elif damage == "end":
        with where.shard.open("r+b") as file:
            file.truncate(where.shard.stat().st_size - 2 * BLOCK)
    else:  # a block came in front: everything lies elsewhere
        where.shard.write_bytes(
            (copy / "test-000000.tar").read_bytes()[:-1024] + where.shard.read_bytes()
        )
    assert not verify_dataset(copy).sound
    report = repair_dataset(copy, tmp_path / "out")
    assert (report.samples, report.lost) == (16, [])
    assert content(tmp_path / "out") == content(packed.folder)
    assert lost_table(tmp_path / "out") == []


def test_a_sound_data_set_comes_out_as_it_was(packed: Packed, tmp_path: Path) -> None:
    repair_dataset(packed.folder, tmp_path / "out")
    ours, theirs = bytes_of(tmp_path / "out"), bytes_of(packed.folder)
    shards = [name for name in theirs if name.endswith((".tar", ".bin"))]
    assert {name: ours[name] for name in shards} == {name: theirs[name] for name in shards}


def test_a_missing_shard(copy: Path, tmp_path: Path) -> None:
    index = DatasetIndex.open(copy)
    index.shard_path(0).unlink()
    report = repair_dataset(copy, tmp_path / "out")
    assert len(report.lost) == index.file.shardlist[0].nsamples
    assert "cannot be opened" in report.lost[0][2]


def test_a_member_that_is_nowhere_is_not_dropped_in_silence(copy: Path, tmp_path: Path) -> None:
    index = DatasetIndex.open(copy)
    columns = {name: np.array(column) for name, column in index.columns.items()}
    columns["sketch.npy.offset"][4] = 7
    table = write_table(columns, lambda name: copy / name)
    (copy / "index.json").write_bytes(index.file.model_copy(update={"table": table}).to_bytes())
    report = repair_dataset(copy, tmp_path / "out")
    assert report.lost == [
        (index.key(4), index.question_id(4), "sketch.npy missing from the shard")
    ]
    short = write_table({**columns, "sketch.npy.size": columns["trace"][1:]}, lambda n: copy / n)
    (copy / "index.json").write_bytes(index.file.model_copy(update={"table": short}).to_bytes())
    with pytest.raises(ShardError, match=r"column sketch.npy.size of shape \(15,\)"):
        repair_dataset(copy, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_refusals_leave_nothing(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="the damaged data set itself"):
        repair_dataset(copy, copy / ".." / "shards")
    with pytest.raises(PackError, match="already holds a data set"):
        repair_dataset(copy, Path(shutil.copytree(copy, tmp_path / "other")))
    table = copy / DatasetIndex.open(copy).file.table.file
    for path in copy.glob("*.tar"):
        path.write_bytes(b"")
    with pytest.raises(ShardError, match="no sample is whole"):
        repair_dataset(copy, tmp_path / "out")
    flip(table, 10)
    with pytest.raises(ShardError, match="XXH3"):
        repair_dataset(copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()
