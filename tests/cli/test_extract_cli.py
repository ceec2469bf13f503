"""``wdsbench extract`` from the outside: its options reach the library, its errors are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llm.tiny import make_model, make_tokenizer

from wdsbench.cli.main import main
from wdsbench.records import Trace
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces

QUESTIONS = "question_id,question,reference\na,red green,blue\nb,who is the one ?,red\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and questions."""
    folder = tmp_path_factory.mktemp("home")
    make_model().save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    (folder / "q.csv").write_text(QUESTIONS)
    return folder


def extract(home: Path, out: Path, *options: str) -> int:
    words = ["--model", str(home / "model"), "--questions", str(home / "q.csv"), "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        main(["extract", *words, "--max-new-tokens", "4", *options])
    code = ended.value.code
    return code if isinstance(code, int) else int(code is not None)


def read(folder: Path) -> list[Trace]:
    return [trace for path in expand_patterns([folder]) for trace in read_traces(path)]


def test_sampling(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--decode", "sample", "--answers-per-question", "3", "--seed", "7", "--json")
    assert extract(home, tmp_path, *options) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["traces"], report["failed"], report["resumed"]) == (6, 0, 0)
    numbers = [(trace.question_id, trace.trace_number) for trace in read(tmp_path)]
    assert numbers == [(name, number) for name in "ab" for number in range(3)]
    assert extract(home, tmp_path, *options, "--resume") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["resumed"] == 6


def test_layers_and_tokens(home: Path, tmp_path: Path) -> None:
    assert extract(home, tmp_path, "--layers", "2,0", "--tokens", "last", "--decode", "beam") == 0
    for trace in read(tmp_path):
        assert trace.hidden.shape[:2] == (2, 1)
        assert trace.attentions is not None
        assert len(trace.attentions) == 2
        assert trace.attentions[0].shape[1] == len(trace.tokens)


def test_failures_are_told_and_no_journal_is_kept_where_not_wanted(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "long.csv").write_text(QUESTIONS + "long," + "red " * 60 + ",x\n")
    words = ("--questions", str(home / "long.csv"), "--no-journal")
    assert extract(home, tmp_path, *words) == 0
    assert "note: 1 questions gave no trace" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"batch_0001.pkl.gz", "failures.jsonl"}
    assert extract(home, tmp_path / "2", *words, "--on-error", "fail") == 1
    assert "question long: the prompt has 61 tokens" in capsys.readouterr().err


def test_straight_into_shards(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, shards = tmp_path / "raw", tmp_path / "shards"
    words = ("--shards", str(shards), "--attention", "heads,edges", "--edge-rule", "top:0.5")
    assert extract(home, out, *words, "--score-column", "token_f1", "--no-keep-raw", "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["samples"], report["files"]) == (2, [])
    assert [path.name for path in out.iterdir()] == ["ground_truth_scores.csv"]
    index = json.loads((shards / "index.json").read_text())
    assert {"hidden", "meta", "edges", "heads"} == set(index["fields"])
    assert sum(split["unlabelled"] for split in index["splits"].values()) == 0
    assert extract(home, tmp_path / "more", *words) == 1
    assert "holds a data set already" in capsys.readouterr().err


def test_shards_without_labels_keep_what_they_were_made_of(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = tmp_path / "shards"
    assert extract(home, tmp_path / "raw", "--shards", str(shards)) == 0
    assert "note: 2 samples have no label" in capsys.readouterr().out
    assert len(read(tmp_path / "raw")) == 2
    assert "edges" in json.loads((shards / "index.json").read_text())["fields"]


# (options, words of the error)
BAD: list[tuple[list[str], str]] = [
    (["--layers", "a"], "--layers 'a' is no list of numbers; write 0,15"),
    (["--layers", "7"], "layer 7 is asked for, but the model returns 3 layers; allowed are 0 .. 2"),
    (["--tokens", "answer"], "tokens is 'answer'; allowed are all, last"),
    (["--decode", "best"], "decode is 'best'"),
    (["--answers-per-question", "2"], "greedy gives one answer; use decode sample"),
    (["--load-in", "2bit"], "load_in is '2bit'; allowed are 8bit, 4bit"),
    (["--device", "cpu", "--device-map", "auto"], "give one of them"),
    (["--no-keep-raw"], "are of --shards; give a folder there"),
    (["--shards", "s", "--score-column", "bleurt"], "is not one of exact_match, token_f1, rouge_l"),
    (["--questions", "questions.txt"], "the name ends in none of"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_errors_are_one_line(
    options: list[str],
    words: str,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert extract(home, tmp_path, *options) == 1
    error = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(error) == 1
    assert words in error[0]
    assert list(tmp_path.iterdir()) == []
