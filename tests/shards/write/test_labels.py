"""New labels in place of old ones: what readers see, and what a kill at any moment leaves."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from builders import make_dataset
from forks import start_code
from scripts import run_code
from trials import full_only, trials

from wdsbench.errors import PackError, ShardError
from wdsbench.shards.format.index import LabelsEntry
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.claim import MARKER_NAME
from wdsbench.shards.write.labels import RowLabels, replace_labels
from wdsbench.shards.write.writer import DatasetWriter

#: Shared by the scripts below: two sets of labels, and the test that one of them stands alone.
HELPERS = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from wdsbench.shards.format.index import LabelsEntry
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.labels import RowLabels, replace_labels
folder = Path(sys.argv[1])
LABELS = {"zeros.csv": 0.0, "ones.csv": 1.0}
def relabel(name):
    def judge(index):
        values = np.full(len(index), LABELS[name], np.float32)
        return RowLabels(values, values + 1)
    replace_labels(folder, judge, LabelsEntry(source="scores", file=name))
def look():
    index = DatasetIndex.open(folder)
    name = index.labels.file
    assert (index.columns["label"] == LABELS[name]).all(), name
    assert (index.columns["score"] == LABELS[name] + 1).all(), name
    kind, other = ("right", "hallucinated") if name == "zeros.csv" else ("hallucinated", "right")
    for entry in index.file.splits.values():
        counts = {"samples": entry.samples, kind: entry.samples, other: 0, "unlabelled": 0}
        assert entry.model_dump() == counts
    return name
def tables():
    return len(list(folder.glob("samples-*.bin")))
def child(function):
    pid = os.fork()
    if pid:
        return pid
    try:
        function()
    finally:
        os._exit(1)
relabel("zeros.csv")
files = sorted(path.name for path in folder.iterdir() if path.suffix != ".bin")
"""

# Kills before the n-th change of the disk, for every n there is; in the full form also after it.
AT_EVERY_STEP = """
def run(n, before):
    left = [n]
    def counted(function):
        def step(*arguments, **named):
            left[0] -= 1
            if before and not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*arguments, **named)
            if not before and not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return step
    for name in ("write", "fsync", "ftruncate"):
        setattr(os, name, counted(getattr(os, name)))
    for name in ("replace", "unlink", "open"):
        setattr(Path, name, counted(getattr(Path, name)))
    relabel("ones.csv")
    os._exit(0)
seen = set()
for before in (True, False)[:int(sys.argv[2])]:
    for n in range(1, 1000):
        status = os.waitpid(child(lambda: run(n, before)), 0)[1]
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        seen.add((look(), tables()))
        relabel("zeros.csv")
        assert (look(), tables()) == ("zeros.csv", 1)
        assert sorted(p.name for p in folder.iterdir() if p.suffix != ".bin") == files
    assert n > 12, n
    relabel("zeros.csv")
# Before the index: with the old table alone, then with both; after it with both, then the new one.
assert seen == {("zeros.csv", 1), ("zeros.csv", 2), ("ones.csv", 2), ("ones.csv", 1)}, seen
"""

# Kills a process that relabels without end, at moments that nobody chose.
AT_RANDOM = """
def forever():
    while True:
        relabel("ones.csv")
        relabel("zeros.csv")
random.seed(int(sys.argv[2]))
began = time.perf_counter()
relabel("zeros.csv")
took = time.perf_counter() - began  # many times longer on a busy machine
seen = set()
for _ in range(int(sys.argv[3])):
    pid = child(forever)
    time.sleep(random.uniform(0.1, 4) * took)
    os.kill(pid, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    seen.add(look())
    assert tables() <= 2
assert len(seen) == 2, seen
relabel("zeros.csv")
assert (look(), tables()) == ("zeros.csv", 1)
assert sorted(path.name for path in folder.iterdir() if path.suffix != ".bin") == files
"""

# Opens while another process relabels: between index and table the index may be replaced.
WHILE_OPENING = """
def forever():
    while True:
        relabel("ones.csv")
        relabel("zeros.csv")
pid = child(forever)
try:
    end = time.monotonic() + 30
    seen = []
    while len(seen) < int(sys.argv[2]) or len(set(seen)) < 2:
        assert time.monotonic() < end, (len(seen), set(seen))
        seen.append(look())
finally:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def all_ones(index: DatasetIndex) -> RowLabels:
    ones = np.ones(len(index), np.float32)
    return RowLabels(ones, ones)


ENTRY = LabelsEntry(source="scores", file="new.csv", column="s", threshold=0.5)


def test_labels_scores_and_counts_are_new_and_all_else_is_not(copy: Path) -> None:
    old, before = DatasetIndex.open(copy), contents(copy)
    file = replace_labels(copy, all_ones, ENTRY)
    new, after = DatasetIndex.open(copy), contents(copy)
    assert new.file == file
    assert new.labels == ENTRY
    assert {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)} == {
        "index.json",
        old.file.table.file,
        file.table.file,
    }
    assert old.columns.keys() == new.columns.keys()
    for name, column in new.columns.items():
        if name in ("label", "score"):
            assert (column == 1).all()
        else:
            np.testing.assert_array_equal(column, old.columns[name])
    for split, entry in new.file.splits.items():
        assert (entry.hallucinated, entry.right, entry.unlabelled) == (old.counts[split], 0, 0)
    same = ("splits", "labels", "table")
    assert file.model_copy(update={name: getattr(old.file, name) for name in same}) == old.file


def test_the_same_labels_again_change_no_byte(copy: Path) -> None:
    replace_labels(copy, all_ones, ENTRY)
    before = contents(copy)
    replace_labels(copy, all_ones, ENTRY)
    assert contents(copy) == before


def test_whatever_raises_leaves_the_old_labels(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(copy)

    def judge(_: DatasetIndex) -> RowLabels:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_labels(copy, judge, ENTRY)
    assert contents(copy) == before

    replace, calls = Path.replace, []

    def full(path: Path, target: Path) -> Path:
        calls.append(target.name)
        if len(calls) == 2:  # the table is in place, the index is not
            raise OSError(28, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(PackError, match="No space left on device"):
        replace_labels(copy, all_ones, ENTRY)
    assert calls[1] == "index.json"
    assert contents(copy) == before


def test_an_interrupt_behind_the_index_leaves_the_new_labels(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def interrupted(path: Path, target: Path) -> Path:
        replace(path, target)
        if target.name == "index.json":
            raise KeyboardInterrupt
        return target

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_labels(copy, all_ones, ENTRY)
    assert (DatasetIndex.open(copy).columns["label"] == 1).all()
    assert len(list(copy.glob("samples-*.bin"))) == 1
    assert not (copy / MARKER_NAME).exists()


def test_two_at_once_are_refused(copy: Path) -> None:
    def judge(index: DatasetIndex) -> RowLabels:
        for second in (
            lambda: replace_labels(copy, all_ones, ENTRY),
            lambda: DatasetWriter(copy),
        ):
            with pytest.raises(PackError, match="another process is writing into"):
                second()
        return all_ones(index)

    replace_labels(copy, judge, ENTRY)
    assert (DatasetIndex.open(copy).columns["label"] == 1).all()


def test_it_waits_for_no_packer(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    (tmp_path / "index.json").write_text("{}")  # so that there is something to relabel
    with pytest.raises(PackError, match="another process is writing into"):
        replace_labels(tmp_path, all_ones, ENTRY)
    writer.abort()


def test_a_table_of_someone_else_is_not_overwritten(copy: Path) -> None:
    before = contents(copy)
    replace_labels(copy, all_ones, ENTRY)
    table = DatasetIndex.open(copy).file.table.file
    for name in contents(copy):
        (copy / name).unlink()
    for name, data in {**before, table: b"theirs"}.items():
        (copy / name).write_bytes(data)
    with pytest.raises(PackError, match="exists and does not belong to this run; remove it"):
        replace_labels(copy, all_ones, ENTRY)
    assert contents(copy) == {**before, table: b"theirs"}


@pytest.mark.parametrize("what", ["empty", "tars", "a tar", "nothing"])
def test_without_an_index(copy: Path, what: str) -> None:
    place = copy
    if what in ("tars", "empty"):
        (copy / "index.json").unlink()
    if what == "empty":
        for path in copy.iterdir():
            path.unlink()
    if what == "a tar":
        place = next(copy.glob("*.tar"))
    if what == "nothing":
        place = copy / "none"
    before = contents(copy)
    with pytest.raises(ShardError, match=r"there is no index\.json.*`wdsbench pack --scores`"):
        replace_labels(place, all_ones, ENTRY)
    assert contents(copy) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_is_read_only(copy: Path) -> None:
    copy.chmod(0o555)
    try:
        with pytest.raises(PackError, match=r"cannot write into .*: Permission denied"):
            replace_labels(copy, all_ones, ENTRY)
    finally:
        copy.chmod(0o755)


def test_a_packer_clears_what_a_killed_run_left(copy: Path) -> None:
    before = contents(copy)
    code = """
import os, sys
from pathlib import Path
from wdsbench.files import temp_path
from wdsbench.shards.write import labels
from wdsbench.shards.format.index import LabelsEntry
import numpy as np
def killed(path):
    temp_path(path).write_bytes(b"half an ind")
    os._exit(9)
labels.atomic_file = killed
ones = lambda index: labels.RowLabels(*[np.ones(len(index), np.float32)] * 2)
labels.replace_labels(Path(sys.argv[1]), ones, LabelsEntry(source="traces"))
"""
    process = start_code(code, copy)
    process.communicate(timeout=60)
    assert process.returncode == 9
    assert len(list(copy.glob("samples-*.bin"))) == 2
    assert (copy / ".index.json.tmp").exists()
    with pytest.raises(PackError, match="already holds a data set"):
        DatasetWriter(copy)
    assert contents(copy) == before


def test_a_marker_of_nonsense_removes_nothing(copy: Path) -> None:
    before = contents(copy)
    table = DatasetIndex.open(copy).file.table.file
    names = ["index.json", "replaced/" + table, table, "../x", "replaced/../x", "train-000000.tar"]
    (copy.parent / "x").write_text("mine")
    (copy / MARKER_NAME).write_text("\n".join([*names, "samples-cut-short"]))
    replace_labels(copy, lambda i: RowLabels(i.columns["label"], i.columns["score"]), ENTRY)
    after = contents(copy)
    assert json.loads(after.pop("index.json"))["labels"] == ENTRY.model_dump()
    before.pop("index.json")
    assert after == before
    assert (copy.parent / "x").read_text() == "mine"


def test_an_open_index_travels_with_the_labels_it_has(copy: Path) -> None:
    old = DatasetIndex.open(copy)
    early = pickle.dumps(old)
    labels = np.array(old.columns["label"])
    replace_labels(copy, all_ones, ENTRY)
    np.testing.assert_array_equal(old.columns["label"], labels)
    # Sent before the change, received after it: the old labels are gone, and that is said.
    with pytest.raises(ShardError, match="was relabelled while"):
        pickle.loads(early)
    twice = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(old))))
    np.testing.assert_array_equal(twice.columns["label"], labels)
    assert twice.file == old.file
    np.testing.assert_array_equal(
        twice.member("hidden.npy", "offset"), old.member("hidden.npy", "offset")
    )


def test_an_index_does_not_travel_to_other_shards(copy: Path, tmp_path: Path) -> None:
    old = DatasetIndex.open(copy)
    shutil.rmtree(copy)
    shutil.move(make_dataset(tmp_path / "b", traces=12).folder, copy)
    with pytest.raises(ShardError, match="the shards have changed"):
        pickle.loads(pickle.dumps(old))


@pytest.mark.trials
def test_killed_at_every_step(copy: Path) -> None:
    run_code(HELPERS + AT_EVERY_STEP, copy, trials(1, 2))


@full_only
def test_killed_at_random(copy: Path) -> None:
    run_code(HELPERS + AT_RANDOM, copy, 7, 150)


@pytest.mark.trials
def test_opened_while_labels_change(copy: Path) -> None:
    run_code(HELPERS + WHILE_OPENING, copy, trials(20, 2000))
