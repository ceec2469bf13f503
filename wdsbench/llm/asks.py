"""Prompts for all answers, and the batches in which they are asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdsbench.errors import ModelError, QuestionError
from wdsbench.llm.model import first_words, quiet_transformers
from wdsbench.llm.options import TEMPLATE_SLOT, TraceOptions
from wdsbench.llm.questions import Question


@dataclass(frozen=True)
class Ask:
    """A prompt for one answer."""

    place: int  # among all asks, from 0
    question: Question
    trace_number: int  # number of the answer, from 0
    prompt: list[int]  # token ids
    refusal: QuestionError | None  # error if it cannot be asked


@dataclass(frozen=True)
class PromptBatch:
    """Prompts that are asked together."""

    number: int  # from 0
    file: int  # number of its trace file, from 1
    asks: list[Ask]  # sorted by length
    closes_file: bool  # True for the last batch of its file


def make_asks(
    config: Any, tokenizer: Any, questions: Sequence[Question], options: TraceOptions
) -> list[Ask]:
    """Return ``answers_per_question`` asks for each question, in the order of the questions."""
    prefix = "" if options.prompt_file is None else read_prefix(options.prompt_file)
    texts = [
        prefix + options.template.replace(TEMPLATE_SLOT, question.question)
        for question in questions
    ]
    if options.chat:
        texts = [in_chat(tokenizer, text, options.system) for text in texts]
    # The tokenizer would warn of texts beyond the model's positions; _refusal names them.
    with quiet_transformers():
        # A chat template writes the special tokens itself.
        prompts: list[list[int]] = tokenizer(texts, add_special_tokens=not options.chat)[
            "input_ids"
        ]
    positions = getattr(config, "max_position_embeddings", None)
    asks: list[Ask] = []
    for question, prompt in zip(questions, prompts, strict=True):
        refusal = _refusal(question, prompt, positions, options.max_new_tokens)
        for trace_number in range(options.answers_per_question):
            asks.append(Ask(len(asks), question, trace_number, prompt, refusal))
    return asks


def read_prefix(path: Path) -> str:
    """Return the text that is put before every prompt.

    Raises:
        QuestionError: The file cannot be read, is empty or is a template.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise QuestionError(f"not UTF-8 ({error.reason}); convert it.", file=str(path)) from error
    except OSError as error:
        detail = f"cannot be read: {error.strerror or error}."
        raise QuestionError(detail, file=str(path)) from error
    if not text:
        raise QuestionError("the prompt file is empty; leave it out.", file=str(path))
    if TEMPLATE_SLOT in text:
        raise QuestionError(
            f"the prompt file contains {TEMPLATE_SLOT}, but is put before the template as it is;"
            " write only the examples, and the last prompt into template.",
            file=str(path),
        )
    return text


def plan_batches(
    asks: Sequence[Ask], traces_per_file: int, batch_size: int
) -> Iterator[PromptBatch]:
    """Yield the batches of all asks that are not refused, prompts of similar length together.

    A file is a range of places, so that failures move no trace to another file.
    """
    number = 0
    for file, first in enumerate(range(0, len(asks), traces_per_file), start=1):
        own = [ask for ask in asks[first : first + traces_per_file] if ask.refusal is None]
        own.sort(key=lambda ask: len(ask.prompt))
        for start in range(0, len(own), batch_size):
            yield PromptBatch(
                number, file, own[start : start + batch_size], start + batch_size >= len(own)
            )
            number += 1


def in_chat(tokenizer: Any, text: str, system: str | None) -> str:
    """Return the text of a chat up to the model's answer."""
    name = tokenizer.name_or_path or "the model"
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"the tokenizer of {name} has no chat template; ask without chat, or give a model that"
            " was trained for chats."
        )
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    try:
        filled = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program and may raise anything
        remedy = "without chat" if system is None else "without system, or without chat"
        raise ModelError(
            f"the chat template of {name} refuses the prompt: {first_words(error)}; ask {remedy}."
        ) from error
    return str(filled)


def _refusal(
    question: Question, prompt: list[int], positions: int | None, max_new_tokens: int
) -> QuestionError | None:
    """Return an error if a prompt cannot be asked."""
    if not prompt:
        detail = "the prompt has no tokens; leave the question out."
    elif positions is not None and len(prompt) + max_new_tokens > positions:
        detail = (
            f"the prompt has {len(prompt)} tokens, the answer may have {max_new_tokens}, but "
            f"the model has {positions} positions; shorten the question or max_new_tokens."
        )
    else:
        return None
    return QuestionError(detail, question_id=question.question_id)
