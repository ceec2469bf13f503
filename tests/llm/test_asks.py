"""What a model is asked, token by token: with and without a chat around it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from llm.tiny import CHAT_TEMPLATE, VOCABULARY, make_model, make_tokenizer

from wdsbench.errors import ModelError
from wdsbench.llm.asks import Ask, Chat, make_asks
from wdsbench.llm.extract import extract
from wdsbench.llm.questions import Question

QUESTIONS = [Question("a", "red", ()), Question("b", "green blue", ())]
TEMPLATE = "where is {question}"


def asks(tokenizer: Any, chat: Chat | None, **changes: Any) -> list[Ask]:
    settings: dict[str, Any] = {"questions": QUESTIONS, "template": TEMPLATE, **changes}
    return make_asks(
        make_model().config, tokenizer, settings["questions"], settings["template"], 4, chat=chat
    )


def words(ask: Ask) -> str:
    names = {number: word for word, number in VOCABULARY.items()}
    return " ".join(names[token] for token in ask.prompt)


@pytest.mark.parametrize(
    ("chat", "wanted"),
    [
        (None, ["<bos> where is red", "<bos> where is green blue"]),
        (Chat(), ["<bos> who where is red three", "<bos> who where is green blue three"]),
        (
            Chat("one two"),
            [
                "<bos> what one two who where is red three",
                "<bos> what one two who where is green blue three",
            ],
        ),
    ],
)
def test_prompts(chat: Chat | None, wanted: list[str]) -> None:
    """A chat template writes the special tokens itself, so that none is there twice."""
    tokenizer = make_tokenizer(chat_template=CHAT_TEMPLATE)
    assert [words(ask) for ask in asks(tokenizer, chat)] == wanted


def test_what_a_chat_template_refuses_is_one_sentence() -> None:
    with pytest.raises(ModelError, match=r"has no chat template; ask without chat") as caught:
        asks(make_tokenizer(), Chat())
    refusing = make_tokenizer(
        chat_template="{% if messages[0].role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}three"
    )
    with pytest.raises(ModelError, match="System role not supported; ask without system") as caught:
        asks(refusing, Chat("one"))
    assert "\n" not in str(caught.value)
    assert len(asks(refusing, Chat())) == 2
    named = make_tokenizer(chat_template={"tools": "x"})  # several, and none for every day
    with pytest.raises(ModelError, match=r"refuses the prompt: .*; ask without chat\."):
        asks(named, Chat())


def test_a_chat_is_extracted_and_resumed_as_one(tmp_path: Path) -> None:
    model, tokenizer = make_model(), make_tokenizer(chat_template=CHAT_TEMPLATE)
    chat = Chat("one two")
    report = extract(model, tokenizer, QUESTIONS, tmp_path, chat=chat, journal=True)
    assert (report.traces, report.failed) == (2, 0)
    assert extract(model, tokenizer, QUESTIONS, tmp_path, chat=chat, resume=True).resumed == 2
    for other in (None, Chat(), Chat("two")):
        with pytest.raises(ValueError, match=r"was begun with chat .*'one two'"):
            extract(model, tokenizer, QUESTIONS, tmp_path, chat=other, resume=True)


def test_a_journal_from_before_there_were_chats_goes_on(tmp_path: Path) -> None:
    model, tokenizer = make_model(), make_tokenizer()
    extract(model, tokenizer, QUESTIONS, tmp_path, journal=True)
    journal = tmp_path / "journal.jsonl"
    text = journal.read_text()
    assert '"chat":null,' in text
    journal.write_text(text.replace('"chat":null,', ""))
    assert extract(model, tokenizer, QUESTIONS, tmp_path, resume=True).resumed == 2


def test_long_prompts_are_refused_by_name_and_not_warned_of() -> None:
    tokenizer = make_tokenizer(model_max_length=48)
    questions = [*QUESTIONS, Question("long", "red " * 60, ())]
    said: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(listener)
    try:
        found = asks(tokenizer, None, questions=questions)
    finally:
        logger.removeHandler(listener)
    assert said == []
    assert [ask.refusal is None for ask in found] == [True, True, False]
    assert "question long: the prompt has 63 tokens" in str(found[2].refusal)


def test_a_template_has_a_place_for_the_question() -> None:
    with pytest.raises(ValueError, match="'where' does not contain"):
        asks(make_tokenizer(), None, template="where")
