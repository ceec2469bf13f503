"""The benchmark runs for real at a small size; its readers give the same data. No times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from wdsbench import TraceLoader
from wdsbench.bench.data import PT_NAME, RAW_NAME, SHARDS_NAME, Shape, make_data
from wdsbench.bench.expert import ExpertReader
from wdsbench.bench.readers import pt_iterable, webdataset_plain, webdataset_tuned
from wdsbench.bench.timing import Work, interleaved
from wdsbench.cli.main import main

SHAPE = Shape("tiny", 40, 2, 16, 8)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    make_data(SHAPE, folder)
    return folder


def sums(batches: list[torch.Tensor]) -> list[float]:
    return sorted(torch.cat([b.reshape(len(b), -1) for b in batches]).double().sum(1).tolist())


def test_every_reader_gives_the_same_samples(data: Path) -> None:
    shards, states = data / SHARDS_NAME, (SHAPE.layers, SHAPE.features)
    ours = [b.hidden.clone() for b in TraceLoader(shards, batch_size=8) if b.hidden is not None]
    expected = sums(ours)
    assert len(expected) == SHAPE.samples
    expert = ExpertReader(data / RAW_NAME, states, 8)
    assert sums([batch.clone() for batch, _ in expert]) == expected
    assert sums(list(webdataset_plain(shards, 8))) == expected
    assert sums(list(webdataset_tuned(shards, 8, states))) == expected
    assert sums(list(pt_iterable(data / PT_NAME, 8))) == expected


def test_data_is_made_once(data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    make_data(SHAPE, data)
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_cases_take_turns() -> None:
    calls: list[str] = []

    def case(name: str) -> Work:
        calls.append(name)
        return Work(2, 8)

    results = interleaved(
        {"a": lambda: case("a"), "b": lambda: case("b")}, repeats=3, least_seconds=0.0
    )
    assert calls == ["a", "b"] * 4
    assert [(result.name, result.epochs) for result in results] == [("a", 3), ("b", 3)]


def test_the_last_line_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(tmp_path / "d"), "--out", str(tmp_path / "o.json"), "--cases", "S"]
    main_words = ["bench", "stream", *words, "--scale", "0.004", "--repeats", "1"]
    with pytest.raises(SystemExit) as ended:
        main(main_words)
    assert ended.value.code in (0, None)
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads((tmp_path / "o.json").read_text())
    names = [case["name"] for case in printed["cases"]]
    assert names[:6] == [
        f"S/{name}" for name in ("memcpy", "kernel", "ours-t1", "ours-t2", "ours-w2", "expert")
    ]
    assert printed["scenario"] == "stream"
    assert printed["ratios"]["S/ours_over_memcpy"] > 0
    assert printed["machine"]["half_kernel"]
