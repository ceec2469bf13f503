"""Every damage is found, with shard, member and byte; a sound data set reports nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Packed, make_dataset, write_pickle
from shards.damage import BLOCK, flip, places, spot
from trials import FULL_ONLY, trials

from wdsbench.pack import PackOptions, pack
from wdsbench.shards.check.shard_check import ShardCheck
from wdsbench.shards.check.verify import verify_dataset
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.read.index import DatasetIndex

ALL_KINDS = ("edges", "heads", "sketch", "full")


@pytest.mark.parametrize("attention", [ALL_KINDS, ("edges", "sketch"), ()])
def test_a_sound_data_set_reports_nothing(tmp_path: Path, attention: tuple[str, ...]) -> None:
    made = make_dataset(tmp_path, traces=12, options=PackOptions(attention=attention, threads=1))
    for fast in (False, True):
        report = verify_dataset(made.folder, fast=fast)
        assert report.sound
        assert (report.samples, report.damaged_samples, report.notes) == (12, 0, [])
        sizes = [path.stat().st_size for path in made.folder.glob("*.tar")]
        assert report.shards == len(sizes)
        assert fast or report.bytes_read == sum(sizes)


def test_scaled_layers_and_infinities_are_sound(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, traces=6, dtype=np.float32)
    states = next(iter(made.raws.values()))["hidden_states"]
    states[1][0, 0], states[2][0, 1] = 1e6, np.inf
    write_pickle(tmp_path / "wide" / "a.pkl", list(made.raws.values()))
    scores = tmp_path / "scores.csv"
    pack([str(tmp_path / "wide" / "*.pkl")], tmp_path / "out", scores=scores)
    index = DatasetIndex.open(tmp_path / "out")
    assert [entry.scaled_samples for entry in index.file.layers] == [0, 1, 0]
    assert [entry.infinities for entry in index.file.layers] == [0, 0, 1]
    assert verify_dataset(tmp_path / "out").sound


def test_reduced_states_are_sound_and_their_file_is_checked(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, traces=12, options=PackOptions(reduce="pca:3", threads=1))
    assert verify_dataset(made.folder).sound
    (file,) = made.folder.glob("reduction-*")
    flip(file, 200)
    assert places(verify_dataset(made.folder)) == [("hash", file.name, None, None)]
    file.unlink()
    assert places(verify_dataset(made.folder)) == [("missing", file.name, None, None)]


# One flipped byte: (what, member, its place relative to the data or "end", kind, exact place).
FLIPS: list[tuple[str, str, Callable[[Any], int], str, bool]] = [
    ("payload of the states", "hidden.npy", lambda m: m.offset + m.size - 3, "hash", False),
    ("payload of a sketch", "sketch.npy", lambda m: m.offset + 200, "hash", False),
    ("text of meta.json", "meta.json", lambda m: m.offset + 40, "hash", False),
    ("an edge", "edges_index.npy", lambda m: m.offset + 130, "hash", False),
    ("name in a tar header", "hidden.npy", lambda m: m.offset - BLOCK + 2, "header", True),
    ("size in a tar header", "heads_ptr.npy", lambda m: m.offset - BLOCK + 130, "header", True),
    ("magic of a tar header", "meta.json", lambda m: m.offset - BLOCK + 258, "header", True),
    ("tail of a tar header", "meta.json", lambda m: m.offset - 1, "header", True),
    ("padding", "meta.json", lambda m: m.end - 1, "padding", True),
    ("magic of an npy", "hidden.npy", lambda m: m.offset, "hash", True),
]


@pytest.mark.parametrize(
    "row", [pytest.param(0, marks=FULL_ONLY), 4, pytest.param(15, marks=FULL_ONLY)]
)
@pytest.mark.parametrize("what", FLIPS, ids=[row[0] for row in FLIPS])
def test_a_flipped_byte(copy: Path, what: Any, row: int) -> None:
    _, member, place, kind, exact = what
    where = spot(copy, row, member)
    offset = place(where)
    flip(where.shard, offset)
    report = verify_dataset(copy)
    assert places(report) == [
        (kind, where.shard.name, where.name, offset if exact else where.offset)
    ]
    assert report.problems[0].question_id == DatasetIndex.open(copy).question_id(row)
    assert report.damaged_samples == 1


def test_a_finished_check_keeps_no_bytes(packed: Packed) -> None:
    check = ShardCheck(DatasetIndex.open(packed.folder), 0).run()
    assert check.bytes_read > 0
    assert not any(value.nbytes for value in vars(check).values() if isinstance(value, np.ndarray))


@pytest.mark.trials
def test_no_byte_of_a_shard_is_left_out(copy: Path) -> None:
    """Any bit, anywhere: found, and laid at the door of the member that it lies in."""
    index = DatasetIndex.open(copy)
    shard = index.shard_path(0)
    rows = range(index.first_rows[1])
    members = [
        spot(index, row, m) for row in rows for m in member_names() if spot(index, row, m).size
    ]
    flips = trials(30, 300)
    for offset in np.random.default_rng(0).integers(0, shard.stat().st_size, flips).tolist():
        flip(shard, offset, 1 << offset % 8)
        check = ShardCheck(index, 0)
        problems = [p for sample in check.samples() for p in sample.problems] + check.problems
        (problem,) = problems
        own = [m.name for m in members if m.offset - BLOCK <= offset < m.end]
        assert [problem.member] == (own or [None]), (offset, problem)
        if problem.kind != "hash":
            assert problem.offset_bytes == offset
        flip(shard, offset, 1 << offset % 8)
    assert verify_dataset(copy).sound


def test_headers_are_found_without_reading_payloads(copy: Path) -> None:
    first, second = spot(copy, 0, "hidden.npy"), spot(copy, 0, "sketch.npy")
    flip(first.shard, first.offset - BLOCK + 2)
    flip(second.shard, second.offset)
    flip(second.shard, second.offset + second.size - 1)  # payload: not looked at
    assert places(verify_dataset(copy, fast=True)) == [
        ("header", first.shard.name, first.name, first.offset - BLOCK + 2),
        ("npy", second.shard.name, second.name, second.offset),
    ]


def test_every_damage_of_a_shard_is_listed(copy: Path) -> None:
    wanted = []
    for row, member in ((0, "hidden.npy"), (1, "meta.json"), (2, "sketch.npy")):
        where = spot(copy, row, member)
        flip(where.shard, where.offset - BLOCK + 5)
        flip(where.shard, where.offset + where.size - 1)
        wanted.append(("header", where.shard.name, where.name, where.offset - BLOCK + 5))
        wanted.append(("hash", where.shard.name, where.name, where.offset))
    assert places(verify_dataset(copy)) == wanted


# Where a shard is cut: in its last sample, in a member's header, between two members, in the end.
CUTS: list[tuple[str, Callable[[Any, int], int]]] = [
    ("inside a payload", lambda m, _: m.offset + m.size // 2),
    ("inside a header", lambda m, _: m.offset - 100),
    ("before a header", lambda m, _: m.offset - BLOCK),
    ("behind the last byte of a member", lambda m, _: m.offset + m.size),
    ("between the end blocks", lambda _, size: size - BLOCK),
    ("inside an end block", lambda _, size: size - 100),
    ("before the end", lambda _, size: size - 2 * BLOCK),
    ("to nothing", lambda *_: 0),
]


@pytest.mark.parametrize(
    ("place", "fast"),
    [
        pytest.param(
            place, fast, marks=FULL_ONLY if fast and number % 3 else (), id=f"{name}-{fast}"
        )
        for number, (name, place) in enumerate(CUTS)
        for fast in (False, True)
    ],
)
def test_a_cut_shard(copy: Path, place: Callable[[Any, int], int], fast: bool) -> None:
    where = spot(copy, 2, "hidden.npy")
    before = where.shard.stat().st_size
    cut = place(where, before)
    index = DatasetIndex.open(copy)
    with where.shard.open("r+b") as file:
        file.truncate(cut)
    report = verify_dataset(copy, fast=fast)
    shard = where.shard.name
    assert report.problems[0].kind == "size"
    assert report.problems[0].offset_bytes == cut
    assert all(problem.shard == shard for problem in report.problems)
    cuts = [problem for problem in report.problems if problem.kind == "cut"]
    assert len(cuts) + 1 == len(report.problems)
    # Every member that reaches past the cut is named, and no other.
    beyond = {
        index.member_name(row, member)
        for member in member_names()
        for row in range(index.first_rows[0], index.first_rows[1])
        if index.member(member, "size")[row]
        and index.member(member, "offset")[row] + index.member(member, "size")[row] > cut
    }
    named = {problem.member for problem in cuts if problem.member}
    assert named == beyond
    if not beyond:
        assert [problem.offset_bytes for problem in cuts] == [cut]


def test_bytes_behind_the_end(copy: Path) -> None:
    where = spot(copy, 0, "hidden.npy")
    size = where.shard.stat().st_size
    with where.shard.open("ab") as file:
        file.write(bytes(700) + b"x" + bytes(323))
    assert places(verify_dataset(copy)) == [
        ("size", where.shard.name, None, size),
        ("end", where.shard.name, None, size + 700),
    ]
    with where.shard.open("r+b") as file:
        file.truncate(size)
    assert verify_dataset(copy).sound
    flip(where.shard, size - 600)
    assert places(verify_dataset(copy)) == [("end", where.shard.name, None, size - 600)]


def test_swapped_members(copy: Path) -> None:
    """Two members of one size, headers and all, change places."""
    first, second = spot(copy, 0, "heads_ptr.npy"), spot(copy, 1, "heads_ptr.npy")
    assert first.size == second.size
    data = bytearray(first.shard.read_bytes())
    one = slice(first.offset - BLOCK, first.end)
    two = slice(second.offset - BLOCK, second.end)
    data[one], data[two] = data[two], data[one]
    first.shard.write_bytes(data)
    found = places(verify_dataset(copy))
    shard = first.shard.name
    assert found == [
        ("member", shard, first.name, second.offset),
        ("member", shard, second.name, first.offset),
    ]
    # Only their data.
    data[one], data[two] = data[two], data[one]
    one, two = (slice(m.offset, m.offset + m.size) for m in (first, second))
    data[one], data[two] = data[two], data[one]
    first.shard.write_bytes(data)
    if data[one] != data[two]:
        assert places(verify_dataset(copy)) == [
            ("hash", shard, first.name, first.offset),
            ("hash", shard, second.name, second.offset),
        ]


def test_a_deleted_and_a_foreign_member(copy: Path) -> None:
    where = spot(copy, 1, "hidden.npy")
    shard = where.shard.name
    data = where.shard.read_bytes()
    cut = where.end - where.offset + BLOCK
    where.shard.write_bytes(data[: where.offset - BLOCK] + data[where.end :])
    after = spot(copy, 1, "meta.json")
    assert places(verify_dataset(copy)) == [
        ("size", shard, None, len(data) - cut),
        ("member", shard, where.name, where.offset),
        ("member", shard, after.name, after.offset - cut),
    ]
    # The same member once more, before itself.
    own = data[where.offset - BLOCK : where.end]
    where.shard.write_bytes(data[: where.offset - BLOCK] + own + data[where.offset - BLOCK :])
    found = places(verify_dataset(copy))
    assert ("size", shard, None, len(data)) in found
    assert ("member", shard, where.name, where.offset + cut) in found  # one too many
    assert ("member", shard, after.name, after.offset + cut) in found  # all others lie elsewhere


def test_owners_in_headers_are_one_problem(copy: Path) -> None:
    where = spot(copy, 0, "attention.npy")
    data = bytearray(where.shard.read_bytes())
    header = data[:BLOCK]
    header[136:148] = b"14000000000\0"  # mtime
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data[:BLOCK] = header
    where.shard.write_bytes(data)
    assert places(verify_dataset(copy)) == [("header", where.shard.name, where.name, 0)]


def test_a_missing_shard(copy: Path) -> None:
    where = spot(copy, 0, "hidden.npy")
    lost = DatasetIndex.open(copy).file.shardlist[0].nsamples
    where.shard.unlink()
    report = verify_dataset(copy)
    assert places(report) == [("missing", where.shard.name, None, None)]
    assert report.damaged_samples == lost
