"""Packing by several processes: the same bytes, the same errors, bounded memory, and deaths."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_raw, write_pickle, write_scores
from scripts import fork_file, open_files
from trials import FULL_ONLY, full_only, trials

from wdsbench.errors import PackError, ScoreError, TraceError
from wdsbench.pack import PackOptions, pack
from wdsbench.pack.prepare import Prepared, Preparer
from wdsbench.pack.workers import _Worker, prepared_files
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.traces.write import write_traces


def children() -> list[int]:
    """Return the workers that this process has started and that are there."""
    tasks = Path("/proc/self/task").iterdir()
    found = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return [
        pid for pid in found if b"wdsbench.processes" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


SUFFIXES = [".pkl", ".pkl.gz", ".npz", ".safetensors"]
ALL_KINDS = ("full", "edges", "heads", "sketch")


def make_files(folder: Path, count: int = 6, traces: int = 7, **raw: Any) -> dict[str, float]:
    """Write raw files of all kinds and return scores."""
    folder.mkdir(parents=True, exist_ok=True)
    scores = {}
    for number in range(count):
        raws = []
        for place in range(traces):
            seed = number * traces + place
            made = make_raw(f"q{seed}", seed=seed, dtype=np.float32 if place % 2 else np.float16)
            if place == 3 and number % 2:
                made["hidden_states"][1] = made["hidden_states"][1].astype(np.float32) * 1e6
                made["hidden_states"] = [s.astype(np.float32) for s in made["hidden_states"]]
            raws.append({**made, **raw})
            scores[f"q{seed}"] = (seed % 10) / 10
        write_traces(folder / f"b{number}{SUFFIXES[number % len(SUFFIXES)]}", raws)
    return scores


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="default", marks=FULL_ONLY),
        pytest.param({"attention": ALL_KINDS}, id="all kinds", marks=FULL_ONLY),
        pytest.param({"split_by": "file", "attention": ()}, id="by file", marks=FULL_ONLY),
        pytest.param(
            {"reduce": "pca:3", "missing_score": "drop", "attention": ALL_KINDS}, id="reduced"
        ),
    ],
)
@pytest.mark.trials
def test_the_same_bytes_as_with_one(options: dict[str, Any], tmp_path: Path) -> None:
    scores = make_files(tmp_path / "traces")
    if "missing_score" in options:
        scores = dict(list(scores.items())[:30])
    table = write_scores(tmp_path / "s.csv", scores)
    found = {}
    most = trials(2, 3)
    before = 0
    for workers in range(1, most + 1):
        report = pack(
            [str(tmp_path / "traces")],
            tmp_path / f"out{workers}",
            scores=table,
            options=PackOptions(shard_mb=0.01, **options),
            workers=workers,
        )
        found[workers] = (digests(tmp_path / f"out{workers}"), report.remarks, report.dropped)
        before = before or open_files()
    assert len(found[1][0]) > 5
    assert all(found[workers] == found[1] for workers in range(2, most + 1))
    assert not children()
    assert open_files() == before


def bad_state(raws: list[dict[str, Any]]) -> None:
    raws[4]["hidden_states"][1][0, 0] = np.nan


def bad_maps(raws: list[dict[str, Any]]) -> None:
    raws[4]["attentions"][0][:] = 7


@pytest.mark.parametrize(
    ("change", "words"),
    [(bad_state, "holds NaN"), pytest.param(bad_maps, "is 7;", marks=FULL_ONLY)],
)
def test_errors_name_file_and_trace_as_with_one(change: Any, words: str, tmp_path: Path) -> None:
    scores = make_files(tmp_path / "traces")
    # Two files are wrong: the first of them is named, whichever process is faster.
    for number in (2, 4):
        raws = [make_raw(f"w{number}{i}", seed=500 + number * 9 + i) for i in range(6)]
        change(raws)
        scores |= {raw["question_id"]: 1.0 for raw in raws}
        write_pickle(tmp_path / "traces" / f"b{number}x.pkl", raws)
    table = write_scores(tmp_path / "s.csv", scores)
    errors = []
    for workers in (1, 2):
        with pytest.raises(TraceError, match=words) as caught:
            pack([str(tmp_path / "traces")], tmp_path / "o", scores=table, workers=workers)
        errors.append((str(caught.value), caught.value.file, caught.value.position))
        assert not (tmp_path / "o").exists()
    assert errors[0] == errors[1]
    assert errors[0][1:] == (str(tmp_path / "traces" / "b2x.pkl"), 4)
    assert not children()


def test_a_copy_in_another_file_is_an_error_too(tmp_path: Path) -> None:
    scores = make_files(tmp_path / "traces", count=2)
    write_pickle(tmp_path / "traces" / "c.pkl", [make_raw("q0", seed=0)])
    write_pickle(tmp_path / "traces" / "d.pkl", [make_raw("q0", seed=0)])
    table = write_scores(tmp_path / "s.csv", scores)
    with pytest.raises(TraceError, match=r"is the same trace as .*b0\.pkl, trace 0"):
        pack([str(tmp_path / "traces")], tmp_path / "o", scores=table, workers=2)


@full_only
def test_labels_that_no_trace_has_are_an_error_too(tmp_path: Path) -> None:
    make_files(tmp_path / "traces")
    options = PackOptions(missing_score="error")
    with pytest.raises(ScoreError, match="no --scores and no label"):
        pack([str(tmp_path / "traces")], tmp_path / "o", options=options, workers=2)


def test_a_killed_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write_scores(tmp_path / "s.csv", make_files(tmp_path / "traces"))

    def killing(files: Any, preparer: Preparer, workers: int) -> Any:
        for number, traces in prepared_files(files, preparer, workers):
            for child in children():
                os.kill(child, signal.SIGKILL)
            yield number, traces

    monkeypatch.setattr(sys.modules["wdsbench.pack.pack_files"], "prepared_files", killing)
    with pytest.raises(PackError, match=r"b\d.*the process that read it was killed by signal 9"):
        pack([str(tmp_path / "traces")], tmp_path / "o", scores=table, workers=2)
    assert not (tmp_path / "o").exists()
    assert not children()


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    table = write_scores(tmp_path / "s.csv", make_files(tmp_path / "traces", count=3))
    script = tmp_path / "script.py"
    call = (
        f"pack([{str(tmp_path / 'traces')!r}], Path({str(tmp_path / 'o')!r}),"
        f" scores=Path({str(table)!r}), workers=2)\n"
    )
    start = "from pathlib import Path\nfrom wdsbench.pack import pack\n"
    script.write_text(f"{start}print('once')\n{call}")
    done = fork_file(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\n", "")
    assert len(DatasetIndex.open(tmp_path / "o")) == 3 * 7


def test_files_under_way_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the parent stands still, no more than workers + 1 files are read."""
    make_files(tmp_path / "traces", count=8)
    files = list(enumerate(sorted((tmp_path / "traces").iterdir())))
    given: list[str] = []
    send = _Worker.send
    monkeypatch.setattr(
        _Worker,
        "send",
        lambda self, place, path: (given.append(path.name), send(self, place, path)),
    )
    preparer = Preparer(PackOptions(missing_score="keep"), None)
    ahead = []
    for number, traces in prepared_files(files, preparer, 2):
        content: list[Prepared] = list(traces)
        assert len(content) == 7
        ahead.append(len(given) - number)
    assert max(ahead) == 3
    assert len(given) == 8


def test_workers_are_one_or_more(tmp_path: Path) -> None:
    make_files(tmp_path / "traces", count=1)
    with pytest.raises(ValueError, match="workers is 0; must be at least 1"):
        pack([str(tmp_path / "traces")], tmp_path / "o", workers=0)
