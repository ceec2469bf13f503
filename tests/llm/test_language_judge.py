"""Language models as judges: batches equal single prompts, and an interrupted run continues."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.runner import run
from llm.test_score import write
from llm.tiny import CHAT_TEMPLATE, VOCABULARY, make_gpt2, make_model, make_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from wdsbench.errors import ModelError
from wdsbench.llm import language_judge
from wdsbench.llm.language_judge import LanguageJudge
from wdsbench.llm.score import ScoredAnswer

TEMPLATE = "who is {question} ? {references} is {answer} ?"
#: The words "one" and "two" of the tiny tokenizer become "yes" and "no".
YES, NO = VOCABULARY["one"], VOCABULARY["two"]
ANSWERS = [
    ScoredAnswer("a", 0, "red", "blue", ("green", "blue")),
    ScoredAnswer("b", 0, "the blue red", "red", ("green",)),
    ScoredAnswer("c", 0, "red", "blue {question}", ("what",)),
    ScoredAnswer("d", 0, "where is the red the blue", "who", ("green three", "three", "red")),
    ScoredAnswer("e", 0, "red", "blue", ("green", "blue")),  # as the first
]
PROMPTS = [
    "who is red ? green; blue is blue ?",
    "who is the blue red ? green is red ?",
    "who is red ? what is blue {question} ?",
    "who is where is the red the blue ? green three; three; red is who ?",
    "who is red ? green; blue is blue ?",
]


def save(folder: Path, model: Any = None, **changes: Any) -> Path:
    (make_model() if model is None else model).save_pretrained(folder)
    tokenizer = make_tokenizer(**changes)
    names = {YES: "yes", NO: "no"}
    words = {names.get(token, word): token for word, token in VOCABULARY.items()}
    inner = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    inner.model = WordLevel(words, unk_token="<unk>")
    tokenizer._tokenizer = inner
    tokenizer.save_pretrained(folder)
    return folder


def alone(judge: LanguageJudge, prompt: str, special: bool = True) -> float:
    """Return the probability of yes from one prompt without padding."""
    tokens = judge._tokenizer(prompt, add_special_tokens=special, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        logits = judge._model(input_ids=tokens).logits[0, -1]
    return float(logits[[YES, NO]].softmax(0)[0])


@pytest.mark.parametrize("make", [make_model, make_gpt2])
def test_batches_equal_single_prompts(make: Any, tmp_path: Path) -> None:
    judge = LanguageJudge(save(tmp_path / "model", make()), TEMPLATE)
    scores = judge.score(ANSWERS, tmp_path / "journal")
    assert scores == pytest.approx([alone(judge, prompt) for prompt in PROMPTS], abs=1e-5)
    assert len(set(scores)) == 4
    assert judge.too_long == 0


def test_a_chat_template_makes_the_prompt_the_users(tmp_path: Path) -> None:
    judge = LanguageJudge(save(tmp_path / "model", chat_template=CHAT_TEMPLATE), TEMPLATE)
    (score,) = judge.score(ANSWERS[:1], tmp_path / "journal")
    assert score == pytest.approx(alone(judge, f"<bos> who {PROMPTS[0]} three", False), abs=1e-5)


def test_prompts_that_are_too_long_have_no_score(tmp_path: Path) -> None:
    judge = LanguageJudge(save(tmp_path / "model"), TEMPLATE)
    long = ScoredAnswer("l", 0, "red " * 48, "blue", ("red",))
    first, second = judge.score([ANSWERS[0], long], tmp_path / "journal")
    assert first == pytest.approx(alone(judge, PROMPTS[0]), abs=1e-5)
    assert math.isnan(second)
    assert judge.too_long == 1


def test_an_interrupted_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_judge, "_BATCH_PROMPTS", 1)
    path, journal = save(tmp_path / "model"), tmp_path / "journal"
    whole = LanguageJudge(path, TEMPLATE).score(ANSWERS, tmp_path / "whole")

    def stop(items: Iterable[Any], *_: Any) -> Iterable[Any]:
        yield from list(items)[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LanguageJudge(path, TEMPLATE).score(ANSWERS, journal, stop)
    with journal.open("a") as file:
        file.write('{"prompts": ["cut sh')
    again = LanguageJudge(path, TEMPLATE)
    asked: list[int] = []
    score = again._score
    monkeypatch.setattr(again, "_score", lambda prompts: asked.append(1) or score(prompts))
    assert again.score(ANSWERS, journal) == whole
    assert len(asked) == 2  # of four distinct prompts
    # Another model does not use them.
    other = LanguageJudge(save(tmp_path / "other", make_model(1)), TEMPLATE)
    found = other.score(ANSWERS, journal)
    assert found == other.score(ANSWERS, tmp_path / "fresh") != whole
    with journal.open("r+") as file:
        file.write("rubbish")
    with pytest.raises(ValueError, match=r"journal: not a journal of a judge .*; remove it"):
        other.score(ANSWERS, journal)


def test_models_and_templates_that_cannot_judge(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"template does not contain \{answer\}"):
        LanguageJudge(tmp_path, "Is it {question}?")
    make_model().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)  # it has neither word
    with pytest.raises(ModelError, match='no token for "yes" or none for "no"; give'):
        LanguageJudge(tmp_path)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "1.pkl", a="blue", b="red")
    (tmp_path / "q.csv").write_text(
        "question_id,question,references\na,red,green|blue\nb,the blue red,green\n"
    )
    (tmp_path / "t.txt").write_text(TEMPLATE + "\n")
    model, out = save(tmp_path / "My-Judge.2"), tmp_path / "s.csv"
    words = ("score", "--traces", tmp_path / "1.pkl", "--questions", tmp_path / "q.csv")
    own = ("--judge", model, "--judge", f"b={model}", "--judge-template", tmp_path / "t.txt")
    assert run(*words, *own, "--out", out, "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    judge = LanguageJudge(model, TEMPLATE)
    wanted = [alone(judge, prompt) for prompt in PROMPTS[:2]]
    assert report["judge_my_judge_2"] == pytest.approx(sum(wanted) / 2, abs=1e-5)
    header, *rows = (line.split(",") for line in out.read_text().splitlines())
    assert header[-3:] == ["judge_my_judge_2", "judge_b", "abstained"]
    assert [float(row[-2]) for row in rows] == pytest.approx(wanted, abs=1e-5)
    assert not list(tmp_path.glob(".s.csv*"))
    assert run(*words, "--judge-template", tmp_path / "t.txt") == 1
    assert "judge_template needs judge" in capsys.readouterr().err
    assert run(*words, *own[:2], "--judge-template", tmp_path / "none") == 1
    assert "none cannot be read: " in capsys.readouterr().err
