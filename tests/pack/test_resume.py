"""A killed run is resumed: the bytes are those of an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from builders import make_raw, write_pickle, write_scores
from forks import Forked, start_code
from trials import FULL_ONLY, trials

from wdsbench.errors import PackError, ScoreError
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.shard import JOURNAL_NAME
from wdsbench.traces.read import read_traces

FILES, TRACES = 8, 6


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with raw files in ``t``, their scores, and what they pack to in ``whole``."""
    folder = tmp_path_factory.mktemp("source")
    scores = {}
    for number in range(FILES):
        # Several traces of a question, in several files; some questions without a score.
        raws = [
            make_raw(f"q{(number * TRACES + i) % 25}", seed=number * TRACES + i)
            for i in range(TRACES)
        ]
        write_pickle(folder / "t" / f"b{number}.pkl", raws)
        scores |= {raw["question_id"]: i % 10 / 10 for i, raw in enumerate(raws) if i % 5}
    write_scores(folder / "s.csv", scores)
    pack_all(folder, "whole")
    return folder


@pytest.fixture
def inputs(source: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder."""
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    return tmp_path


def pack_all(tmp_path: Path, out: str, **changes: Any) -> Any:
    own = {key: changes.pop(key) for key in ("resume", "workers") if key in changes}
    options = {"shard_mb": 0.004, "missing_score": "drop", **changes}
    return pack(
        [str(tmp_path / "t")],
        tmp_path / out,
        scores=tmp_path / "s.csv",
        options=PackOptions(**options),
        **own,
    )


def start(tmp_path: Path, out: str, *more: str, **options: Any) -> Forked:
    """Start a run in a process of its own that takes its time with every trace."""
    code = f"""
import sys, time
from pathlib import Path
import wdsbench.pack.prepare as prepare
from wdsbench.pack import PackOptions, pack
take = prepare.Preparer.trace
def slow(self, trace):
    time.sleep(0.004)
    return take(self, trace)
prepare.Preparer.trace = slow
{" ".join(more)}
root = Path({str(tmp_path)!r})
pack([str(root / "t")], root / {out!r}, scores=root / "s.csv", resume=True,
     options=PackOptions(**{ {"shard_mb": 0.004, "missing_score": "drop", **options}!r}))
"""
    return start_code(code)


def killed(tmp_path: Path, out: str, shards: int, **options: Any) -> None:
    """Kill a run once it has finished some shards more."""
    folder = tmp_path / out
    before = len(list(folder.glob("*.tar")))
    process = start(tmp_path, out, **options)
    end = time.monotonic() + 30
    while len(list(folder.glob("*.tar"))) < before + shards and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.001)
    time.sleep(random.Random(shards).random() * 0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)


@pytest.mark.trials
@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({}, 2),
        pytest.param({}, 1, marks=FULL_ONLY),
        pytest.param({"reduce": "pca:3"}, 1, marks=FULL_ONLY),
        pytest.param({"reduce": "pca:3"}, 2, marks=FULL_ONLY),
        pytest.param({"split_by": "file"}, 1, marks=FULL_ONLY),
        pytest.param({"split_by": "file"}, 2, marks=FULL_ONLY),
    ],
)
def test_killed_again_and_again(options: dict[str, Any], workers: int, inputs: Path) -> None:
    if options.get("split_by") == "file":  # a question is in one file only
        for number in range(FILES):
            raws = [make_raw(f"f{number}-{i}", seed=number * TRACES + i) for i in range(TRACES)]
            write_pickle(inputs / "t" / f"b{number}.pkl", raws)
        write_scores(inputs / "s.csv", {f"f{n}-{i}": 1.0 for n in range(FILES) for i in range(5)})
    shutil.rmtree(inputs / "whole")
    whole = pack_all(inputs, "whole", **options)
    for shards in (1, 3, 2)[: trials(2, 3)]:
        killed(inputs, "out", shards, **options)
    finished = {p.name: p.stat().st_mtime_ns for p in (inputs / "out").glob("*.tar")}
    assert finished
    report = pack_all(inputs, "out", resume=True, workers=workers, **options)
    assert contents(inputs / "out") == contents(inputs / "whole")
    assert (report.samples, report.dropped, report.remarks, report.unlabelled) == (
        whole.samples,
        whole.dropped,
        whole.remarks,
        whole.unlabelled,
    )
    kept = [n for n, t in finished.items() if (inputs / "out" / n).stat().st_mtime_ns == t]
    assert len(kept) >= len(finished) - 1  # one may not have been in the journal yet


def stop_after(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    """Let the next run raise after some samples."""
    from wdsbench.shards.write.writer import DatasetWriter

    add = DatasetWriter.add
    left = [samples]

    def counted(self: DatasetWriter, *arguments: Any, **more: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        add(self, *arguments, **more)

    monkeypatch.setattr(DatasetWriter, "add", counted)


#: After how many samples a run stops.
FEW, MORE = (1, 27), (0, 5, 15, 35)


@pytest.mark.parametrize("samples", [*FEW, *(pytest.param(n, marks=FULL_ONLY) for n in MORE)])
def test_stopped_anywhere(samples: int, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, samples)
        with pytest.raises(KeyboardInterrupt):
            pack_all(inputs, "out", resume=True)
    pack_all(inputs, "out", resume=True)
    assert contents(inputs / "out") == contents(inputs / "whole")


def interrupted(inputs: Path, monkeypatch: pytest.MonkeyPatch, samples: int = 27) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, samples)
        with pytest.raises(KeyboardInterrupt):
            pack_all(inputs, "out", resume=True)


def test_files_that_are_done_are_not_read_again(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(inputs, monkeypatch, 35)
    read: list[str] = []

    def counted(path: Path) -> Any:
        read.append(path.name)
        return read_traces(path)

    monkeypatch.setattr(sys.modules["wdsbench.pack.prepare"], "read_traces", counted)
    pack_all(inputs, "out", resume=True)
    assert len(read) < FILES
    assert read[-1] == f"b{FILES - 1}.pkl"


def test_without_resume_it_begins_anew(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(inputs, monkeypatch)
    pack_all(inputs, "out", threshold=0.2)
    shutil.rmtree(inputs / "whole")
    pack_all(inputs, "whole", threshold=0.2)
    assert contents(inputs / "out") == contents(inputs / "whole")


def test_another_run_is_refused_and_nothing_is_lost(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(inputs, monkeypatch)
    before = contents(inputs / "out")
    with pytest.raises(PackError, match=r"with threshold 0\.5, this run has 0\.2"):
        pack_all(inputs, "out", resume=True, threshold=0.2)
    write_pickle(inputs / "t" / "extra.pkl", [make_raw("e", seed=1)])
    with pytest.raises(PackError, match="with inputs"):
        pack_all(inputs, "out", resume=True)
    (inputs / "t" / "extra.pkl").unlink()
    assert contents(inputs / "out") == before
    write_pickle(inputs / "t" / "b0.pkl", [make_raw("q0", seed=1)])
    with pytest.raises(PackError, match=r"b0\.pkl was changed since"):
        pack_all(inputs, "out", resume=True)
    assert set(contents(inputs / "out")) >= {n for n in before if n.endswith(".tar")}


@pytest.mark.parametrize("damage", ["flipped", "gone", pytest.param("cut", marks=FULL_ONLY)])
def test_a_damaged_shard_is_made_again(
    damage: str, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(inputs, monkeypatch)
    shard = inputs / "out" / "train-000001.tar"
    data = bytearray(shard.read_bytes())
    if damage == "gone":
        shard.unlink()
    elif damage == "cut":
        shard.write_bytes(data[:-512])
    else:
        data[700] ^= 1
        shard.write_bytes(data)
    pack_all(inputs, "out", resume=True)
    assert contents(inputs / "out") == contents(inputs / "whole")


def test_a_journal_that_was_cut_short(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(inputs, monkeypatch)
    journal = inputs / "out" / JOURNAL_NAME
    journal.write_bytes(journal.read_bytes()[:-200])
    pack_all(inputs, "out", resume=True)
    assert contents(inputs / "out") == contents(inputs / "whole")


def test_an_error_leaves_what_is_finished_and_can_be_mended(inputs: Path) -> None:
    write_pickle(inputs / "t" / "b9.pkl", [make_raw("unscored", seed=1000)])
    with pytest.raises(ScoreError):
        pack_all(inputs, "out", resume=True, missing_score="error")
    left = contents(inputs / "out")
    assert json.loads(left[JOURNAL_NAME].splitlines()[0])["run"]["missing_score"] == "error"


def test_resuming_a_finished_data_set_or_nothing(inputs: Path) -> None:
    pack_all(inputs, "out", resume=True)
    assert contents(inputs / "out") == contents(inputs / "whole")
    assert len(DatasetIndex.open(inputs / "out"))
    with pytest.raises(PackError, match="already holds a data set"):
        pack_all(inputs, "out", resume=True)
    assert contents(inputs / "out") == contents(inputs / "whole")


def test_foreign_tars_stay(inputs: Path) -> None:
    (inputs / "out").mkdir()
    (inputs / "out" / "train-000000.tar").write_bytes(b"theirs")
    with pytest.raises(PackError, match="belong to no data set of wdsbench"):
        pack_all(inputs, "out", resume=True)
    assert contents(inputs / "out") == {"train-000000.tar": b"theirs"}
    assert os.listdir(inputs / "out") == ["train-000000.tar"]  # noqa: PTH208
