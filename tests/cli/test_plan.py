"""The estimates of ``wdsbench plan`` against data that is extracted and packed."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llm.tiny import CHAT_TEMPLATE, VOCABULARY, extract, make_questions, make_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from trials import trials

from wdsbench.cli.main import main
from wdsbench.llm import plan
from wdsbench.llm.model import load_model
from wdsbench.llm.options import TraceOptions
from wdsbench.llm.questions import Question
from wdsbench.pack import PackOptions, pack

QUESTIONS = 120
LAYERS, HEADS, FEATURES = 4, 4, 128
KINDS: list[tuple[str, ...]] = [
    ("full",),
    ("edges",),
    ("heads",),
    ("sketch",),
    ("edges", "sketch"),
    (),
]


def questions() -> list[Question]:
    """Prompts of 20 to 60 tokens."""
    return [
        Question(
            one.question_id,
            " ".join([one.question, *["red", "who", "two"] * (number % 13 + 6)]),
            (),
        )
        for number, one in enumerate(make_questions(QUESTIONS))
    ]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, large enough that states outweigh names, and questions."""
    folder = tmp_path_factory.mktemp("home")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=FEATURES,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=128,
        initializer_range=0.1,
        pad_token_id=VOCABULARY["<pad>"],
        bos_token_id=VOCABULARY["<bos>"],
        eos_token_id=VOCABULARY["<eos>"],
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    lines = [
        json.dumps({"question_id": one.question_id, "question": one.question})
        for one in questions()
    ]
    (folder / "q.jsonl").write_text("\n".join(lines))
    return folder


def run(home: Path, *options: str) -> int:
    words = ["--model", str(home / "model"), "--questions", str(home / "q.jsonl")]
    with pytest.raises(SystemExit) as ended:
        main(["plan", *words, "--max-new-tokens", "8", *options])
    code = ended.value.code
    return code if isinstance(code, int) else int(code is not None)


def report(home: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert run(home, *options, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


#: (attention, options); the first cases are the quick form: reduced tokens.
CASES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("heads",), {"tokens": "answer"}),
    (("edges", "sketch"), {"tokens": "last"}),
    (("full",), {"layers": [0, 2]}),
    *((kinds, {}) for kinds in KINDS),
    ((), {"tokens": "answer"}),
    ((), {"tokens": "last"}),
    (("edges", "sketch"), {"tokens": "answer"}),
]


@pytest.mark.trials
@pytest.mark.parametrize(("kinds", "options"), CASES[: trials(2, len(CASES))], ids=str)
def test_within_15_percent_of_a_real_set(
    kinds: tuple[str, ...],
    options: dict[str, Any],
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, tokenizer = load_model(home / "model")
    extracted = extract(
        model,
        tokenizer,
        questions(),
        tmp_path / "traces",
        max_new_tokens=8,
        attention=kinds,
        **options,
    )
    pack(
        [str(tmp_path / "traces" / "*.pkl.gz")],
        tmp_path / "shards",
        options=PackOptions(missing_score="keep", attention=kinds),
    )
    raw = sum(path.stat().st_size for path in extracted.files)
    shards = sum(path.stat().st_size for path in (tmp_path / "shards").iterdir())
    words = ["--attention", plan.kinds_name(kinds)]
    for name, value in options.items():
        words += [f"--{name}", ",".join(map(str, value)) if name == "layers" else value]
    row = report(home, capsys, *words)["per_1000_traces"][plan.kinds_name(kinds)]
    assert row["raw"] * QUESTIONS / 1000 == pytest.approx(raw, rel=0.15)
    assert row["shards"] * QUESTIONS / 1000 == pytest.approx(shards, rel=0.15)
    without = report(home, capsys, *words, "--probe", "0")
    row = without["per_1000_traces"][plan.kinds_name(kinds)]
    assert without["probe"] is None
    # Longest answers and assumed compression: larger, but of the same order.
    assert 0.8 * raw < row["raw"] * QUESTIONS / 1000 < 1.6 * raw
    assert 0.8 * shards < row["shards"] * QUESTIONS / 1000 < 1.6 * shards


def test_a_full_disk_is_exit_code_1_and_names_what_fits(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = report(home, capsys, "--attention", "full", "--probe", "0")
    assert whole["fits"]
    assert whole["traces_that_fit"] == QUESTIONS
    needs = {name: row["needed"] for name, row in whole["per_1000_traces"].items()}
    assert needs["full"] > needs["none"]
    usage = namedtuple("usage", "total used free")
    free = (needs["full"] + max(value for name, value in needs.items() if name != "full")) // 2
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(0, 0, free))
    assert run(home, "--probe", "0", "--out", str(home / "not" / "there" / "yet")) == 1
    shown = capsys.readouterr().out
    assert "it does not fit" in shown
    assert "to make it fit: --attention edges or heads or sketch or edges,sketch or none" in shown
    assert not (home / "not").exists()
    assert run(home, "--attention", "edges", "--probe", "0") == 0
    assert "it fits" in capsys.readouterr().out


def test_the_probe_gives_a_time(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(home, capsys, "--probe", "5", "--answers-per-question", "3")
    assert found["traces"] == 3 * QUESTIONS
    assert found["probe"]["traces"] == 5
    assert found["probe"]["seconds"] == pytest.approx(
        found["probe"]["seconds_per_trace"] * 3 * QUESTIONS
    )
    assert 1 <= found["answer_tokens"] <= 8


def test_stops_shorten_the_answers_of_the_probe(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--probe", "4", "--attention", "none")
    assert run(home, *words) == 0
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "were cut" in line)
    assert note == "  note: 4 of 4 answers were cut at 8 tokens (--max-new-tokens, --stop)"
    stops = [part for word in VOCABULARY for part in ("--stop", word)]
    (tmp_path / "examples.txt").write_text("who is red ", encoding="utf-8")
    words += ("--prompt-file", str(tmp_path / "examples.txt"))
    found = report(home, capsys, *words, *stops)
    assert (found["answer_tokens"], found["probe"]["cut"]) == (1, 0)
    plain = report(home, capsys, "--probe", "0")["prompt_tokens"]
    assert found["prompt_tokens"] == plain + 3 * QUESTIONS


def test_many_answers_are_counted_without_a_list(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = report(home, capsys, "--probe", "0")
    assert run(home, "--probe", "0", "--answers-per-question", str(10**9), "--json") == 1  # too big
    many = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert many["traces"] == QUESTIONS * 10**9
    assert many["raw"] == one["raw"] * 10**9
    row, wanted = (found["per_1000_traces"]["full"]["raw"] for found in (many, one))
    assert row == pytest.approx(wanted)


def test_weights_are_not_needed(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "model", tmp_path / "model", ignore=shutil.ignore_patterns("*.safe*"))
    (tmp_path / "q.jsonl").write_bytes((home / "q.jsonl").read_bytes())
    assert run(tmp_path) == 0


def test_refused_questions_are_not_counted(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in extraction, also for the first question, with which the probe would begin."""
    lines = (home / "q.jsonl").read_text().splitlines()
    for name in ("first", "last"):
        long = json.dumps({"question_id": name, "question": "red " * 200})
        lines = [long, *lines] if name == "first" else [*lines, long]
    asked = tmp_path / "q.jsonl"
    asked.write_text("\n".join(lines))
    words = ("--questions", str(asked))
    wanted, found = (report(home, capsys, *own, "--probe", "0") for own in ((), words))
    assert (wanted["refused"], found["refused"]) == (0, 2)
    for name in ("traces", "prompt_tokens", "raw", "needed", "file_memory"):
        assert found[name] == wanted[name]
    assert report(home, capsys, *words, "--probe", "3")["probe"]["traces"] == 3
    assert run(home, *words, "--probe", "0") == 0
    note = "note: 2 questions cannot be asked and are not counted; the first: question first: the"
    assert note in capsys.readouterr().out


def test_a_chat_is_longer(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(home, tmp_path / "home")
    tokenizer = make_tokenizer(chat_template=CHAT_TEMPLATE)
    tokenizer.save_pretrained(tmp_path / "home" / "model")
    tokens = [
        report(tmp_path / "home", capsys, *words, "--probe", probe)["prompt_tokens"] / QUESTIONS
        for *words, probe in (("0",), ("--chat", "0"), ("--chat", "--system", "one two", "2"))
    ]
    plain = tokens[0]
    assert tokens == pytest.approx([plain, plain + 2, plain + 5])


def test_a_file_cannot_be_the_folder(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "x" / "y"):
        assert run(home, "--probe", "0", "--out", str(place)) == 1
        (error,) = capsys.readouterr().err.splitlines()
        assert f"{place} cannot be a folder: {file} is a file" in error


def test_as_large_as_a_7b_model() -> None:
    """262 kB of states per token, without overflow."""
    form = plan.ModelSize(32, 32, 4096)
    prompts = np.full(1000, 200)
    sizes = plan.estimate(form, prompts, TraceOptions(attention=()), plan.Rates(answer_tokens=56))
    assert sizes.shards == pytest.approx(1000 * 256 * 32 * 4096 * 2, rel=0.01)
    full = plan.estimate(form, prompts, TraceOptions(), plan.Rates(answer_tokens=56))
    assert full.shards - sizes.shards == pytest.approx(1000 * 1024 * 256 * 257, rel=0.01)


# (options, words of the error)
BAD: list[tuple[list[str], str]] = [
    (["--attention", "some"], "'some' is not one of full, edges, heads, sketch, none"),
    (["--max-new-tokens", "0"], "max_new_tokens is 0"),
    (["--answers-per-question", "0"], "answers_per_question is 0"),
    (["--layers", "x"], "--layers 'x' is not a comma list of integers"),
    (["--layers", "0,4", "--probe", "0"], "--layers is 0,4; the model has layers 0 to 3"),
    (["--layers", ",", "--probe", "0"], "layers are []; must be"),
    (["--probe", "-1"], "probe is -1; must be at least 0"),
    (["--tokens", "first"], "tokens is 'first'; expected one of all, answer, last"),
    (["--tokens", "first", "--probe", "0"], "tokens is 'first'; expected one of all, answer, last"),
    (["--model", "./missing"], "model ./missing: there is no such folder"),
    (["--model", "/no/such/model"], "model /no/such/model: there is no such folder"),
    (["--template", "x", "--probe", "0"], "template 'x' does not contain {question}"),
    (["--chat"], "has no chat template; ask without chat"),
    (["--system", "x"], "system needs chat"),
    (["--max-new-tokens", "128"], "none of 120 questions can be asked; the first: question q0: "),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_errors_are_one_line(
    options: list[str], words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(home, *options) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(lines) == 1
    assert words in lines[0]
