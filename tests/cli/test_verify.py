"""``wdsbench verify``."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import Packed, make_dataset, make_raw
from cli.runner import run as command
from shards.damage import flip, spot

import wdsbench
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.write.claim import MARKER_NAME

DEMO = Path(wdsbench.__file__).parent / "demo"


def run(*words: object) -> int:
    return command("verify", *words)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=20)


@pytest.fixture
def damaged(packed: Packed, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(packed.folder, tmp_path / "damaged"))
    where = spot(folder, 3, "hidden.npy")
    flip(where.shard, where.offset + where.size - 1)
    return folder


@pytest.mark.parametrize("words", [(), ("--fast",), ("--threads", "1")])
def test_a_sound_data_set_is_code_0(
    packed: Packed, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(packed.folder, *words) == 0
    out, err = capsys.readouterr()
    assert out.startswith("20 samples in ")
    assert out.endswith(": sound\n")
    assert err.startswith("verifying ...")


def test_problems_are_code_1(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = spot(damaged, 3, "hidden.npy")
    assert run(damaged) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("1 problem")
    assert lines[2].split() == ["hash", "1", "1", where.shard.name]
    assert lines[3] == "  1 samples are damaged; --repair keeps the others"
    assert lines[4].startswith(
        f"  shard {where.shard.name}, member {where.name}, byte {where.offset}: XXH3"
    )
    assert run(damaged, "--fast") == 0  # headers are intact


def test_json_report(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (damaged / MARKER_NAME).write_bytes(b"")
    assert run(damaged, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    where = spot(damaged, 3, "hidden.npy")
    (problem,) = report.pop("problems")
    assert (problem["kind"], problem["shard"]) == ("hash", where.shard.name)
    assert (problem["member"], problem["offset_bytes"]) == (where.name, where.offset)
    assert problem["question_id"].startswith("q/")
    assert (report["kind"], report["sound"], report["samples"]) == ("dataset", False, 20)
    assert report["damaged_samples"] == 1
    assert report["recompute"] is None
    assert "was killed" in report["notes"][0]


def test_repair(damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fixed"
    assert run(damaged, "--repair", "--out", out) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"19 samples are intact, 1 are lost -> {out}"
    assert lines[-1] == f"  note: {out / 'lost.csv'} lists all lost samples"
    assert run(out) == 0
    capsys.readouterr()
    assert run(damaged, "--repair", "--out", tmp_path / "again", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["samples"], len(report["lost"])) == ("repair", 19, 1)
    assert report["lost"][0]["question_id"].startswith("q/")


def test_raw_patterns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad: Any = make_raw("bad", seed=1, tokens=5)
    del bad["tokens"]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([make_raw("good", seed=0, tokens=5), bad]))
    (tmp_path / "b.pkl").write_bytes(b"no pickle")
    (tmp_path / "c.pkl").write_bytes(pickle.dumps([make_raw("other", seed=2, tokens=4)]))
    pattern = tmp_path / "*.pkl*"
    assert run(pattern) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 good traces of 2 questions, 9 tokens, in 3 files: 2 problems"
    assert lines[1] == "  1 bad traces, 1 bad files"
    assert lines[2].startswith(f"  file {tmp_path / 'a.pkl'}, trace 1, question bad: required")
    assert lines[3].startswith(f"  file {tmp_path / 'b.pkl'}: not a readable pickle")
    assert run(pattern, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["traces"], report["bad_files"]) == ("raw", 2, 1)
    assert [problem["position"] for problem in report["problems"]] == [1, None]
    assert run(tmp_path / "c.pkl") == 0
    assert run(tmp_path / "c.pkl", tmp_path / "a.pkl") == 1


def test_tars_without_an_index(packed: Packed, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{packed.folder}/*.tar") == 0
    assert "note: no index" in capsys.readouterr().out
    assert run(f"{packed.folder}/train-{{000000..000001}}.tar") == 0
    assert run(*sorted(packed.folder.glob("*.tar"))) == 0
    assert run(f"{packed.folder}/x-*.tar") == 1
    assert "no such tar file" in capsys.readouterr().err


def test_recompute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from llm.tiny import extract

    from wdsbench.llm.model import load_model
    from wdsbench.llm.questions import read_questions
    from wdsbench.traces.read import read_traces
    from wdsbench.traces.write import write_traces

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model, tokenizer = load_model(DEMO / "model")
        questions = read_questions(DEMO / "questions.jsonl.gz", 3)
        extract(model, tokenizer, questions, tmp_path / "traces", attention=("edges",))
        words = ("--recompute", 2, "--model", DEMO / "model")
        assert run(tmp_path / "traces", *words) == 0
        out = capsys.readouterr().out
        assert "2 traces recomputed: as stored" in out
        assert "states    0" in out
        assert run(tmp_path / "traces", *words, "--json") == 0
        report = json.loads(capsys.readouterr().out)["recompute"]
        assert report["sound"]
        assert {found["kind"] for found in report["deviations"]} == {"states", "logprobs", "edges"}
        (trace, *_) = read_traces(tmp_path / "traces" / "batch_0001.pkl.gz")
        raw = {
            "hidden_states": trace.hidden[::-1].copy(),
            "tokens": trace.tokens,
            "question_id": trace.question_id,
        }
        (tmp_path / "wrong").mkdir()
        write_traces(tmp_path / "wrong" / "a.pkl.gz", [raw])
        assert run(tmp_path / "wrong", *words) == 1
        out = capsys.readouterr().out
        assert "1 are not as stored" in out
        # Layers and tokens come from the stored traces.
        chosen: dict[str, Any] = {"layers": [1, 4], "tokens": "answer", "attention": ("edges",)}
        extract(model, tokenizer, questions, tmp_path / "chosen", **chosen)
        options = PackOptions(attention=("edges",), missing_score="keep")
        pack([str(tmp_path / "chosen" / "*.pkl.gz")], tmp_path / "shards", options=options)
        for source in (tmp_path / "chosen", tmp_path / "shards"):
            assert run(source, *words, "--json") == 0
            report = json.loads(capsys.readouterr().out)["recompute"]
            states = [found for found in report["deviations"] if found["kind"] == "states"]
            assert [found["layer"] for found in states] == [1, 4]
        assert run(tmp_path / "shards", *words, "--layers", "0,4") == 1
        assert "holds layers 1, 4, not layers 0, 4 as in --layers" in capsys.readouterr().err
        assert "EXCEEDED" in out
    finally:
        torch.set_num_threads(threads)


def test_errors_are_one_line(
    packed: Packed, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = packed.folder.parent / "traces_data"
    for words, error in (
        ((packed.folder, "--repair"), "--repair and --out must be given together"),
        ((packed.folder, "--out", tmp_path / "x"), "--repair and --out must be given together"),
        ((raw, "--repair", "--out", tmp_path / "x"), "--repair needs one data set"),
        ((packed.folder, "--recompute", 2), "--model M must be given together"),
        ((packed.folder, "--recompute", 0, "--model", "m"), "recompute is 0 traces; must be at"),
        ((packed.folder, raw), "not both"),
        ((packed.folder, damaged), "one data set at a time"),
        ((raw, "--fast"), "--fast needs a data set"),
        ((tmp_path / "nothing*",), "no file matches"),
        ((packed.folder, "--threads", 0), "--threads is 0"),
        ((damaged, "--repair", "--out", packed.folder), "already holds a data set"),
    ):
        assert run(*words) == 1
        text = capsys.readouterr().err
        assert text.splitlines()[-1].startswith("wdsbench: error: ")
        assert error in text
    assert run() == 2
