"""The lists "How to add" of docs/architecture.md, followed with a toy of each.

A toy member kind is in tests/shards/format/test_toy_kind.py, a toy layout in
tests/loader/layouts/test_toy_layout.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from builders import make_dataset, make_raw
from numpy.typing import NDArray
from typer.testing import CliRunner

from wdsbench import Batch
from wdsbench.cli.options import command_of
from wdsbench.detect import registry
from wdsbench.detect.registry import DetectorSpec, LoaderNeeds
from wdsbench.options import option
from wdsbench.pack import pack
from wdsbench.traces import files, read
from wdsbench.train.config import TrainConfig
from wdsbench.train.run import train


def read_json(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the traces of a JSON file."""
    for raw in json.loads(path.read_text(encoding="utf-8")):
        states = np.array(raw["hidden_states"], np.float16)
        yield {**raw, "hidden_states": states, "tokens": np.array(raw["tokens"])}


def test_a_trace_file_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(files.SUFFIXES, "json", (".traces.json",))
    monkeypatch.setitem(read.NAMED_READERS, "json", read_json)
    kept = ("question_id", "tokens", "prompt_length")
    raws = []
    for i in range(8):
        raw = make_raw(f"q{i}", seed=i)
        states = [layer.tolist() for layer in raw["hidden_states"]]
        raws.append({"hidden_states": states, **{name: raw[name] for name in kept}})
    (tmp_path / "a.traces.json").write_text(json.dumps(raws), encoding="utf-8")
    assert pack([str(tmp_path / "*.traces.json")], tmp_path / "shards").samples == 8


def score_tokens(batch: Batch) -> NDArray[np.float64]:
    """Return the length of the whole sequence."""
    found: NDArray[np.float64] = batch.token_count.numpy().astype(np.float64)
    return found


def test_a_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DetectorSpec("toy", "closed_form", LoaderNeeds(), score=score_tokens)
    monkeypatch.setitem(registry._REGISTRY, "toy", spec)
    shards = make_dataset(tmp_path, traces=80).folder
    results = train(shards, ["toy", "length"], tmp_path / "run", TrainConfig())
    assert 0 <= results.detectors["toy"].auroc <= 1


@dataclass(frozen=True, kw_only=True)
class CountJob:
    """Options of the toy command."""

    shards: Path = option(help="Folder of the data set.", argument=True)
    split: str = option("train", "One split.")


def count(options: CountJob, as_json: bool) -> None:
    """Count samples."""
    index = json.loads((options.shards / "index.json").read_bytes())
    samples = index["splits"][options.split]["samples"]
    print(json.dumps({"samples": samples}) if as_json else f"{samples} samples")  # noqa: T201


def test_a_command(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("count")(command_of(count))
    shards = str(make_dataset(tmp_path, traces=20).folder)
    shown = CliRunner().invoke(app, [shards, "--split", "val", "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["samples"] > 0
    assert "One split." in CliRunner().invoke(app, ["--help"]).output
