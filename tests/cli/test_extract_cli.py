"""``wdsbench extract``: its options reach the library; errors are one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from cli.runner import run
from llm.tiny import CHAT_TEMPLATE, VOCABULARY, make_model, make_tokenizer

from wdsbench.records import Trace
from wdsbench.shards.format.names import split_of_question
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces
from wdsbench.traces.scores import SCORES_NAME

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
    return run("extract", *words, "--max-new-tokens", "4", *options)


def command(*words: str) -> None:
    """Run another command, which must succeed."""
    assert run(*words) == 0


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


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


def test_failures_are_reported_and_the_journal_is_optional(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "long.csv").write_text(QUESTIONS + "long," + "red " * 60 + ",x\n")
    words = ("--questions", str(home / "long.csv"), "--no-journal")
    assert extract(home, tmp_path, *words) == 0
    assert "note: 1 questions gave no trace" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"batch_0001.pkl.gz", "failures.jsonl"}
    assert extract(home, tmp_path / "2", *words, "--on-error", "fail") == 1
    assert "question long: the prompt has 61 tokens" in capsys.readouterr().err
    several = ("--decode", "sample", "--answers-per-question", "3", "--questions", words[1])
    assert extract(home, tmp_path / "3", *several) == 0
    assert "note: 3 answers gave no trace" in capsys.readouterr().out


def test_a_chat(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    make_model().save_pretrained(model)
    make_tokenizer(chat_template=CHAT_TEMPLATE).save_pretrained(model)
    words = ("--model", str(model), "--chat", "--system", "one two", "--template", "is {question}")
    assert extract(home, tmp_path / "out", *words, "--attention", "none") == 0
    prompts = [trace.token_texts[: trace.prompt_length] for trace in read(tmp_path / "out")]
    start = ["<bos>", "what", "one", "two", "who", "is"]
    assert prompts[0] == [*start, "red", "green", "three"]
    assert prompts[1] == [*start, "who", "is", "the", "one", "?", "three"]
    command("verify", str(tmp_path / "out"), "--recompute", "2", "--model", str(model))
    capsys.readouterr()
    assert extract(home, tmp_path / "out", *words[:2], "--attention", "none", "--resume") == 1
    assert "was begun with chat {'system': 'one two'}, this run has None" in capsys.readouterr().err


def test_answers_that_are_cut(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert extract(home, tmp_path / "1", "--max-new-tokens", "1") == 0
    note = "note: 2 answers (100%) were cut at 1 tokens; extract again with --max-new-tokens 2"
    assert note in capsys.readouterr().out
    stops = [part for word in VOCABULARY for part in ("--stop", word)]
    assert extract(home, tmp_path / "2", *stops, "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["unfinished_share"], report["empty_answers"]) == (0, 2)


@pytest.mark.parametrize("options", [("--out",), ("--shards",)])
def test_a_file_in_place_of_a_folder_is_refused(
    options: tuple[str], home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "x"):
        assert extract(home, tmp_path / "out", *options, str(place)) == 1
        (error,) = capsys.readouterr().err.splitlines()
        assert f"{place} cannot be a folder: {file} is a file; choose" in error
    assert list(tmp_path.iterdir()) == [file]


def test_extract_into_shards(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, shards = tmp_path / "raw", tmp_path / "shards"
    words = ("--shards", str(shards), "--attention", "heads,edges", "--edge-rule", "top:0.5")
    assert extract(home, out, *words, "--score-column", "token_f1", "--no-keep-raw", "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["samples"], report["files"], report["removed"]) == (2, [], 1)
    assert report["bytes"] == sum(path.stat().st_size for path in shards.glob("*.tar"))
    assert {path.name for path in out.iterdir()} == {"ground_truth_scores.csv", "journal.jsonl"}
    index = json.loads((shards / "index.json").read_text())
    assert {"hidden", "meta", "edges", "heads"} == set(index["fields"])
    assert sum(split["unlabelled"] for split in index["splits"].values()) == 0
    assert extract(home, tmp_path / "more", *words) == 1
    assert "holds a data set already" in capsys.readouterr().err


def test_shards_with_one_sided_labels(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.csv").write_text("question_id,question,reference\na,red,x\nb,who,y\n")
    words = ("--shards", str(tmp_path / "shards"), "--questions", str(tmp_path / "q.csv"))
    assert extract(home, tmp_path / "raw", *words, "--score-column", "contains") == 0
    warning = "  warning: contains labels 2 of 2 samples hallucinated; wdsbench score names"
    assert warning in capsys.readouterr().out


def test_each_answer_is_labelled_by_its_own_score(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Extracting into shards gives the same bytes as extract, score and pack one after another."""
    asked = tmp_path / "q.csv"
    asked.write_text("question_id,question,reference\na,red,the one is red\nb,who ?,the blue one\n")
    sampling = ("--questions", str(asked), "--decode", "sample", "--answers-per-question", "3")
    sampling += ("--traces-per-file", "2")
    attention = ("--attention", "edges")
    shards = ("--shards", str(tmp_path / "shards"), "--score-column", "rouge_l")
    assert extract(home, tmp_path / "a", *sampling, *attention, *shards, "--no-keep-raw") == 0
    assert "6 samples, 0.0 MB in 2 shards" in capsys.readouterr().out
    assert extract(home, tmp_path / "b", *sampling, *attention) == 0
    traces, scores = str(tmp_path / "b"), str(tmp_path / SCORES_NAME)
    command("score", "--traces", traces, "--questions", str(asked), "--out", scores)
    words = ("--traces", traces, "--scores", scores, "--score-column", "rouge_l", *attention)
    command("pack", *words, "--missing-score", "keep", "--out", str(tmp_path / "packed"))
    assert contents(tmp_path / "shards") == contents(tmp_path / "packed")
    assert (tmp_path / "a" / SCORES_NAME).read_bytes() == Path(scores).read_bytes()
    index = DatasetIndex.open(tmp_path / "shards")
    found = dict(
        zip(
            zip(index.question_ids(np.arange(6)), index.columns["trace"].tolist(), strict=True),
            index.columns["score"].tolist(),
            strict=True,
        )
    )
    rows = csv.DictReader(Path(scores).read_text().splitlines())
    expected = {(row["question_id"], int(row["trace"])): float(row["rouge_l"]) for row in rows}
    assert found == pytest.approx(expected)
    assert len(set(expected.values())) > 1


def test_failed_packing_names_what_is_kept_and_resumes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, shards = tmp_path / "raw", tmp_path / "shards"
    words = ("--shards", str(shards), "--traces-per-file", "1", "--no-keep-raw", "--json")
    obstacle = shards / ".index.json.tmp"
    obstacle.mkdir(parents=True)
    assert extract(home, out, *words) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "the extraction is finished, but the data set is not: cannot write to" in error
    assert "is kept, and the same command with --resume continues" in error
    assert extract(home, out, *words) == 1
    assert "holds an unfinished data set; continue it with --resume" in capsys.readouterr().err
    assert extract(home, tmp_path / "other", *words, "--resume") == 1
    assert "unfinished data set of another extraction" in capsys.readouterr().err
    obstacle.rmdir()
    assert extract(home, out, *words, "--resume") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["samples"], report["removed"], report["resumed"]) == (2, 2, 2)


def test_a_file_that_cannot_be_packed_stops_the_run(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, shards = tmp_path / "raw", tmp_path / "shards"
    words = ("--shards", str(shards), "--traces-per-file", "1", "--shard-mb", "0.000001")
    split = split_of_question("a")
    obstacle = shards / f".{split}-000000.tar.tmp"
    obstacle.mkdir(parents=True)
    assert extract(home, out, *words) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "batch_0001.pkl.gz is extracted, but not packed: cannot write to" in error
    obstacle.rmdir()
    assert extract(home, out, *words, "--resume") == 0
    assert "2 samples, 0.0 MB in 2 shards" in capsys.readouterr().out
    assert extract(home, out, *words, "--resume") == 0  # nothing is left to do
    assert "2 samples, 0.0 MB in 2 shards" in capsys.readouterr().out
    assert extract(home, out, *words, "--resume", "--edge-rule", "top:0.5") == 1
    assert "holds a data set already" in capsys.readouterr().err


def test_trace_files_of_shards_without_labels_are_kept(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = tmp_path / "shards"
    assert extract(home, tmp_path / "raw", "--shards", str(shards)) == 0
    assert "note: 2 samples have no label" in capsys.readouterr().out
    assert len(read(tmp_path / "raw")) == 2
    assert "edges" in json.loads((shards / "index.json").read_text())["fields"]


# (options, words of the error)
BAD: list[tuple[list[str], str]] = [
    (["--layers", "a"], "--layers 'a' is not a comma list of integers; write --layers 0,15"),
    (["--layers", "7"], "layer 7 is asked for, but the model returns 3 layers; expected 0 .. 2"),
    (["--tokens", "prompt"], "tokens is 'prompt'; expected one of all, "),
    (["--decode", "best"], "decode is 'best'"),
    (["--answers-per-question", "2"], "greedy gives one answer; use decode sample"),
    (["--load-in", "2bit"], "load_in is '2bit'; expected one of 8bit, 4bit"),
    (["--device", "cpu", "--device-map", "auto"], "give one of them"),
    (["--no-keep-raw"], "--score-column and --no-keep-raw need --shards"),
    (["--shards", "s", "--no-keep-raw", "--no-journal"], "--no-keep-raw needs the journal"),
    (
        ["--shards", "s", "--score-column", "bleurt"],
        "one of exact_match, token_f1, rouge_l, contains, numeric",
    ),
    (["--questions", "questions.txt"], "the name ends in none of"),
    (["--chat"], "has no chat template; ask without chat, or give a model"),
    (["--system", "x"], "system needs chat; enable chat"),
    (["--stop", ""], "stop has an empty text"),
    (["--prompt-file", "missing.txt"], "missing.txt: cannot be read: No such file"),
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
