"""The tokens of prompts, with and without a chat template."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from llm.tiny import CHAT_TEMPLATE, VOCABULARY, extract, make_model, make_tokenizer

from wdsbench.errors import ModelError
from wdsbench.llm.asks import Ask, make_asks
from wdsbench.llm.options import TraceOptions
from wdsbench.llm.questions import Question

QUESTIONS = [Question("a", "red", ()), Question("b", "green blue", ())]
TEMPLATE = "where is {question}"


CHAT: dict[str, Any] = {"chat": True}


def asks(tokenizer: Any, questions: list[Question] = QUESTIONS, **changes: Any) -> list[Ask]:
    options = TraceOptions(**{"template": TEMPLATE, "max_new_tokens": 4, **changes})
    return make_asks(make_model().config, tokenizer, questions, options)


def words(ask: Ask) -> str:
    names = {number: word for word, number in VOCABULARY.items()}
    return " ".join(names[token] for token in ask.prompt)


@pytest.mark.parametrize(
    ("chat", "wanted"),
    [
        ({}, ["<bos> where is red", "<bos> where is green blue"]),
        (CHAT, ["<bos> who where is red three", "<bos> who where is green blue three"]),
        (
            {**CHAT, "system": "one two"},
            [
                "<bos> what one two who where is red three",
                "<bos> what one two who where is green blue three",
            ],
        ),
    ],
)
def test_prompts(chat: dict[str, Any], wanted: list[str]) -> None:
    """A chat template writes the special tokens itself, so they are not added again."""
    tokenizer = make_tokenizer(chat_template=CHAT_TEMPLATE)
    assert [words(ask) for ask in asks(tokenizer, **chat)] == wanted


def test_chat_template_errors_are_one_sentence() -> None:
    with pytest.raises(ModelError, match=r"has no chat template; ask without chat") as caught:
        asks(make_tokenizer(), **CHAT)
    refusing = make_tokenizer(
        chat_template="{% if messages[0].role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}three"
    )
    with pytest.raises(ModelError, match="System role not supported; ask without system") as caught:
        asks(refusing, **CHAT, system="one")
    assert "\n" not in str(caught.value)
    assert len(asks(refusing, **CHAT)) == 2
    named = make_tokenizer(chat_template={"tools": "x"})  # several, and none for every day
    with pytest.raises(ModelError, match=r"refuses the prompt: .*; ask without chat\."):
        asks(named, **CHAT)


def test_a_chat_is_extracted_and_resumed(tmp_path: Path) -> None:
    model, tokenizer = make_model(), make_tokenizer(chat_template=CHAT_TEMPLATE)
    chat = {**CHAT, "system": "one two"}
    report = extract(model, tokenizer, QUESTIONS, tmp_path, **chat, journal=True)
    assert (report.traces, report.failed) == (2, 0)
    assert extract(model, tokenizer, QUESTIONS, tmp_path, **chat, resume=True).resumed == 2
    for other in ({}, CHAT, {**CHAT, "system": "two"}):
        with pytest.raises(ValueError, match=r"was begun with chat .*'one two'"):
            extract(model, tokenizer, QUESTIONS, tmp_path, **other, resume=True)


def test_long_prompts_are_refused_without_a_warning() -> None:
    tokenizer = make_tokenizer(model_max_length=48)
    questions = [*QUESTIONS, Question("long", "red " * 60, ())]
    said: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(listener)
    try:
        found = asks(tokenizer, questions)
    finally:
        logger.removeHandler(listener)
    assert said == []
    assert [ask.refusal is None for ask in found] == [True, True, False]
    assert "question long: the prompt has 63 tokens" in str(found[2].refusal)


def test_a_template_has_a_place_for_the_question() -> None:
    with pytest.raises(ValueError, match="'where' does not contain"):
        asks(make_tokenizer(), template="where")
