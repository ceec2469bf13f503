"""Every part runs for real at a small size, and says what its ratios need. No times."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from trials import FULL, full_only, trials

from wdsbench.bench.cold import cold_part
from wdsbench.bench.data import Shape, TraceShape
from wdsbench.bench.memory import memory_part
from wdsbench.bench.opening import SHARD_SAMPLES, opening_part
from wdsbench.bench.part import Part, Settings
from wdsbench.bench.parts import named, stream_parts
from wdsbench.bench.report import as_json, plot_parts, print_part
from wdsbench.bench.stream import last_part, padded_part, stream_part
from wdsbench.bench.timing import new_process
from wdsbench.errors import WdsbenchError

OURS = ["ours-t1", "ours-t2", "ours-w2"]

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def check(
    part: Part,
    cases: list[str],
    ratios: set[str],
    settings: Settings,
    folder: Path,
    *,
    drawn: bool = FULL,
) -> None:
    """Assert what holds for every part: names, numbers, a table, JSON and, if ``drawn``, a picture
    of it.
    """
    assert [result.name for result in part.results] == cases
    assert set(part.ratios) == ratios
    assert all(part.value(name) > 0 for name in cases)
    printed = io.StringIO()
    print_part(part, Console(width=120, file=printed))
    assert all(f" {name} " in printed.getvalue() for name in cases)
    report = json.loads(json.dumps(as_json("stream", [part], settings), allow_nan=False))
    assert [case["name"] for case in report["cases"]] == [f"{part.name}/{name}" for name in cases]
    assert {"gbps", "samples_per_s", "memory_mb", "seconds", "epochs"} <= set(report["cases"][0])
    assert set(report["ratios"]) == {f"{part.name}/{name}" for name in ratios}
    assert report["parts"][part.name]["facts"]["threads"] == 2
    assert report["settings"]["seed"] == 0
    if drawn:
        assert plot_parts(folder / "parts.png", [part]).read_bytes().startswith(b"\x89PNG")


@full_only
def test_equal_samples(data: Path, shape: Shape, settings: Settings, tmp_path: Path) -> None:
    assert data.parent == settings.data
    part = stream_part(shape, dataclasses.replace(settings, more_readers=True))
    readers = [
        "kernel",
        "kernel-pread",
        "expert",
        "webdataset",
        "webdataset-tuned",
        "pt-iterable",
        "pt-map",
    ]
    readers += ["webdataset-w2", "pt-iterable-w2"]
    check(
        part,
        ["memcpy", *readers[:2], *OURS, *readers[2:]],
        {f"ours_over_{name}" for name in ("memcpy", *readers)} | {"ours_w2_over_ours_w0"},
        settings,
        tmp_path,
    )
    epochs = {result.name: result.epochs or 0 for result in part.results}
    assert all(epochs[name] >= 10 for name in OURS[:2])


def test_padded_traces(
    trace_data: Path, trace_shape: TraceShape, settings: Settings, tmp_path: Path
) -> None:
    assert trace_data.parent == settings.data
    others = ["expert", "webdataset", "webdataset-tuned"]
    check(
        padded_part(settings, trace_shape),
        ["memcpy", *OURS, *others],
        {f"ours_over_{name}" for name in ("memcpy", *others)} | {"ours_w2_over_ours_w0"},
        settings,
        tmp_path,
        drawn=True,
    )


def test_last_tokens(
    trace_data: Path, trace_shape: TraceShape, settings: Settings, tmp_path: Path
) -> None:
    assert trace_data.parent == settings.data
    others = ["expert", "webdataset", "webdataset-tuned"]
    check(
        last_part(settings, trace_shape),
        [*OURS, *others],
        {f"ours_over_{name}" for name in others} | {"ours_w2_over_ours_w0"},
        settings,
        tmp_path,
    )


@pytest.mark.trials
def test_opening(
    data: Path,
    shape: Shape,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert data.parent == settings.data
    samples = trials(50, SHARD_SAMPLES)
    monkeypatch.setattr("wdsbench.bench.opening.SHARD_SAMPLES", samples)
    part = opening_part(settings, shape, Shape("many", 2 * samples, 2, 8, samples // 4))
    cases = ["a-w0", "a-w2", "million-w0", "million-w2", "million-index"]
    ratios = {f"{name.replace('-', '_')}_seconds" for name in cases}
    check(part, cases, ratios, settings, tmp_path)
    assert part.facts["million_shards"] == 2


def test_cold(data: Path, shape: Shape, settings: Settings, tmp_path: Path) -> None:
    assert data.parent == settings.data
    part = cold_part(shape, settings)
    check(part, ["dd", "ours-t2"], {"ours_over_dd"}, settings, tmp_path)
    assert part.name == "cold-tiny"
    assert part.facts["shard_bytes"] > 0
    assert 0 <= part.facts["resident_share"] <= 1
    assert [result.repeats for result in part.results] == [3, 3]
    assert len(part.notes) == 1


def test_files_that_stay_in_memory_are_said_aloud(
    data: Path, shape: Shape, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data.parent == settings.data
    monkeypatch.setattr("wdsbench.bench.cold.drop", lambda _: None)
    (note,) = cold_part(shape, settings).notes
    assert note.startswith("NOT COLD: 100.00%")


@full_only
def test_memory(settings: Settings, tmp_path: Path) -> None:
    small = TraceShape("holes", 40, 2, 64, 4, 50, 50)
    part = memory_part(dataclasses.replace(settings, scale=0.5), small)
    cases = [f"w{workers}-shuffle-{size}" for workers in (0, 2) for size in (1, 500)]
    check(part, cases, {"shuffle_mb", "shuffle_w2_mb"}, settings, tmp_path)


def test_a_process_that_fails_is_an_error() -> None:
    with pytest.raises(WdsbenchError, match=r"-m no_such_module .*: No module named"):
        new_process("no_such_module", ["a"])()


@full_only
def test_a_process_without_a_data_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WdsbenchError, match="no data set here"):
        new_process("wdsbench.bench.memory", [str(tmp_path), "1", "0", "4"])()


def test_parts_by_name() -> None:
    assert [part.func for part in named(["S", "A"], stream_parts())] == [stream_part] * 2  # type: ignore[attr-defined]
    assert named(["B"], stream_parts()) == [padded_part]
    # cold is two; gpu is none where there is no device
    assert len(named(["all"], stream_parts())) == len(stream_parts()) + (
        1 if torch.cuda.is_available() else 0
    )
    assert len(named(["cold", "A", "A"], stream_parts())) == 3
    for words in ([], ["A", "C"]):
        with pytest.raises(ValueError, match="not a list of A, S, B, B-last, open, cold"):
            named(words, stream_parts())
