"""``wdsbench inspect``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from builders import Packed, make_dataset, make_raw, write_pickle
from cli.runner import run as command

from wdsbench.pack import PackOptions, pack
from wdsbench.shards.read.index import DatasetIndex


def run(*words: object) -> int:
    return command("inspect", *words)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=20)


def test_a_data_set(packed: Packed, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(packed.folder) == 0
    out = capsys.readouterr().out
    assert "state tokens" not in out
    assert out.startswith(f"{packed.folder}: 20 samples of 20 questions, ")
    for title in ("splits", "fields", "members", "lengths", "layers", "shards"):
        assert f"\n{title}" in out
    assert "hidden.npy" in out
    assert "train-000000.tar" in out
    assert "  split_by: question" in out
    assert run(packed.folder, "--json", "--ranges", 3) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["kind"], found["samples"], found["range_samples"]) == ("dataset", 20, 3)
    assert err == ""
    assert run(f"{packed.folder}/*.tar") == 0
    assert run(packed.folder / "train-000000.tar", packed.folder / "train-000001.tar") == 0


def test_chosen_layers_and_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raws = []
    for number in range(6):
        raw = make_raw(f"q{number}", seed=number, tokens=8)
        states = [layer[raw["prompt_length"] :] for layer in raw["hidden_states"]]
        raws.append(
            {
                **raw,
                "layers": [0, 15, 31],
                "hidden_states": states,
                "states_of": "answer",
                "label": 1,
            }
        )
    source = write_pickle(tmp_path / "t.pkl", raws)
    pack([str(source)], tmp_path / "out", options=PackOptions())
    for place in (source, tmp_path / "out"):
        assert run(place, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert [row["model_layer"] for row in found["layers"]] == [0, 15, 31]
        assert [row["layer"] for row in found["layers"]] == [0, 1, 2]
        assert run(place) == 0
        out = capsys.readouterr().out
        assert re.search(r"^1 +15 ", out, re.MULTILINE)
        assert "states of the answer's tokens only" in " ".join(out.split())
    assert "  layers: [0, 15, 31]" in out
    assert "state tokens" in out
    assert found["state_tokens"]["total"] == 6 * 4
    assert run(source, "--sample", "q1", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["layers"]
    assert [row["model_layer"] for row in rows] == [0, 15, 31]


def test_a_sample(packed: Packed, capsys: pytest.CaptureFixture[str]) -> None:
    index = DatasetIndex.open(packed.folder)
    assert run(packed.folder, "--sample", index.key(0)) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{index.key(0)}: question {index.question_id(0)}, trace 0, of split")
    assert "'t0'" in out
    assert "hidden.npy" in out
    assert run(packed.folder, "--sample", index.question_id(0), "--json") == 0
    assert json.loads(capsys.readouterr().out)["key"] == index.key(0)
    assert run(packed.folder, "--sample", "nobody") == 1
    assert "neither a member key nor a question id" in capsys.readouterr().err


def test_raw_files(packed: Packed, capsys: pytest.CaptureFixture[str]) -> None:
    pattern = packed.folder.parent / "traces_data" / "*.pkl*"
    assert run(pattern) == 0
    out = capsys.readouterr().out
    assert f"{pattern}: 20 good traces of 20 questions" in out
    assert "list of array" in out
    assert "labels in the files: 20 unlabelled" in out
    assert run(pattern, "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "raw"
    assert run(pattern, "--sample", "q/3.é") == 0
    assert "'t0'" in capsys.readouterr().out


def test_bad_files_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pkl").write_bytes(b"no [red]pickle[/red]")
    assert run(tmp_path) == 0
    assert "not a readable pickle" in " ".join(capsys.readouterr().out.split())


def test_errors_are_one_line(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, error in (
        ((tmp_path / "none*",), "no file matches"),
        ((packed.folder, "--ranges", -1), "--ranges is -1"),
        ((packed.folder, packed.folder.parent / "traces_data"), "not both"),
    ):
        assert run(*words) == 1
        text = capsys.readouterr().err
        assert text.startswith("wdsbench: error: ")
        assert error in text
    assert run() == 2
