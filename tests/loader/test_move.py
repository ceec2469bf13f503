"""States copied as float16 and widened on the device equal those widened on the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import Packed, make_dataset, make_raw, write_pickle, write_scores
from loaded import assert_same, by_sample
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.pack import pack
from wdsbench.slabs.transfer import move_batch

CHOICES: list[dict[str, Any]] = [
    {"tokens": "last"},
    {"tokens": "last", "layers": [2, 0, 2]},
    {"tokens": "all", "layout": "pad"},
    {"tokens": 3, "layout": "pad", "layers": [1]},
    {"tokens": "answer", "layout": "jagged"},
    {"tokens": "all", "layout": "jagged", "layers": [2, 1]},
    {"tokens": ("first", 2), "layout": "pad"},
    {"layout": "graph"},
    {"layout": "graph", "layers": [2, 0]},
]


def ids(choice: dict[str, Any]) -> str:
    return "-".join(str(value) for value in choice.values())


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("half"), traces=40)


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every third sample exceeds float16, each in different layers."""
    folder = tmp_path_factory.mktemp("scaled")
    raws = [make_raw(f"q{i}", seed=i, dtype=np.float32) for i in range(40)]
    for i, raw in enumerate(raws):
        if i % 3 == 0:
            raw["hidden_states"][i % 2] *= np.float32(10.0 ** (4 + i % 7))
    write_pickle(folder / "t.pkl", raws)
    scores = write_scores(folder / "s.csv", {raw["question_id"]: 1.0 for raw in raws})
    pack([str(folder / "t.pkl")], folder / "shards", scores=scores)
    return folder / "shards"


def folder_of(source: str, request: pytest.FixtureRequest) -> Path:
    """Return the folder of fixture ``half`` or ``scaled``."""
    made = request.getfixturevalue(source)
    return made.folder if isinstance(made, Packed) else Path(made)


both = pytest.mark.parametrize("source", ["half", "scaled"])


def load(folder: Path, **options: Any) -> TraceLoader:
    return TraceLoader(folder, split=None, batch_size=7, **options)


#: (source, number of the choice, workers) of `make test`.
QUICK = [*(("scaled", number, 0) for number in range(len(CHOICES))), ("half", 2, 0)]
QUICK += [("scaled", 4, 1), ("half", 8, 1)]


@pytest.mark.parametrize(
    ("source", "choice", "workers"),
    [
        pytest.param(
            source,
            choice,
            workers,
            marks=() if (source, number, workers) in QUICK else FULL_ONLY,
            id=f"{source}-{ids(choice)}-{workers}",
        )
        for source in ("half", "scaled")
        for workers in (0, 1)
        for number, choice in enumerate(CHOICES)
    ],
)
def test_widened_on_the_device_or_the_host(
    source: str, choice: dict[str, Any], workers: int, request: pytest.FixtureRequest
) -> None:
    folder = folder_of(source, request)
    here = by_sample(load(folder, **choice))
    loader = load(folder, **choice, device="cpu", widen="device", num_workers=workers)
    batches = list(loader)
    for batch in batches:
        states: Any = batch.graph.x if batch.graph is not None else batch.hidden
        assert states.dtype == torch.float32
        assert batch.hidden_scale is None
    assert_same(by_sample(batches), here)


def test_scaled_states_exceed_float16(scaled: Path) -> None:
    loader = load(scaled, tokens="all", layout="pad")
    largest = max(float(batch.hidden.abs().max()) for batch in loader if batch.hidden is not None)
    assert largest > 1e6
    assert loader.index.member("hidden_scale.npy", "size").any()


@both
def test_device_cpu_changes_nothing(source: str, request: pytest.FixtureRequest) -> None:
    folder = folder_of(source, request)
    assert_same(by_sample(load(folder, device="cpu")), by_sample(load(folder)))


def test_float16_batches_have_half_the_bytes(half: Packed) -> None:
    here = load(half.folder, tokens="all", layout="pad")
    there = load(half.folder, tokens="all", layout="pad", device="cpu", widen="device")
    assert here._split.batch_bytes[0] == 2 * there._split.batch_bytes[0]


def test_moving_twice_scales_once(scaled: Path) -> None:
    loader = load(scaled, device="cpu", widen="device")
    for batch in loader:
        again = move_batch(batch, torch.device("cpu"))
        assert again.hidden is not None
        assert batch.hidden is not None
        assert torch.equal(again.hidden, batch.hidden)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"widen": "device"}, "needs a device"),
        ({"widen": "gpu", "device": "cpu"}, "'gpu' is not one of host, device"),
        ({"widen": "", "device": "cpu"}, "'' is not one of host, device"),
    ],
)
def test_wrong_arguments(half: Packed, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load(half.folder, **options)


def test_states_of_other_widths_are_refused(half: Packed, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(half.folder, tmp_path / "shards")
    path = tmp_path / "shards" / "index.json"
    index = json.loads(path.read_text())
    index["fields"]["hidden"]["dtype"] = "<f4"
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="states are stored as <f4, not as <f2"):
        load(tmp_path / "shards", device="cpu", widen="device")


@pytest.mark.gpu
@both
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("widen", ["host", "device"])
def test_batches_on_a_gpu_equal_host_batches(
    source: str, workers: int, widen: str, request: pytest.FixtureRequest
) -> None:
    folder = folder_of(source, request)
    for choice in CHOICES:
        here = by_sample(load(folder, **choice))
        loader = load(folder, **choice, device="cuda", widen=widen, num_workers=workers)
        for _ in range(3):
            assert_same(by_sample(loader), here)
