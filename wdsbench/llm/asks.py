"""Prompts for all answers, and the batches in which they are asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from wdsbench.errors import ModelError, QuestionError
from wdsbench.llm.model import quiet_transformers
from wdsbench.llm.options import TEMPLATE_SLOT, TraceOptions
from wdsbench.llm.questions import Question


@dataclass(frozen=True)
class Ask:
    """A prompt for one answer.

    Attributes:
        place: Position among all asks, from 0.
        question: The question.
        trace_number: Number of the answer, from 0.
        prompt: Token ids.
        refusal: Why it cannot be asked, or None.
    """

    place: int
    question: Question
    trace_number: int
    prompt: list[int]
    refusal: QuestionError | None


@dataclass(frozen=True)
class PromptBatch:
    """Prompts that are asked together.

    Attributes:
        number: Number of the batch, from 0.
        file: The trace file it belongs to, from 1.
        asks: Ordered by length.
        closes_file: True for the last batch of its file.
    """

    number: int
    file: int
    asks: list[Ask]
    closes_file: bool


def make_asks(
    config: Any, tokenizer: Any, questions: Sequence[Question], options: TraceOptions
) -> list[Ask]:
    """Return ``answers_per_question`` asks for each question, in the order of the questions.

    Args:
        config: The model's configuration.
        tokenizer: Its tokenizer.
        questions: Questions to ask.
        options: Prompt template, chat and length of answers.

    Raises:
        ModelError: The tokenizer has no chat template, or its template refuses the prompt.
    """
    texts = [options.template.replace(TEMPLATE_SLOT, question.question) for question in questions]
    if options.chat:
        texts = [_in_chat(tokenizer, text, options.system) for text in texts]
    # The tokenizer warns of texts beyond the model's positions; they are refused by name below.
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


def digest_of(asks: Sequence[Ask]) -> str:
    """Return a digest (16 hex digits) of all prompts and their order."""
    digest = xxhash.xxh3_64()
    for ask in asks:
        digest.update(repr((ask.question.question_id, ask.trace_number, ask.prompt)).encode())
    return digest.hexdigest()


def plan_batches(
    asks: Sequence[Ask], traces_per_file: int, batch_size: int
) -> Iterator[PromptBatch]:
    """Yield the batches of all asks that are not refused.

    Within a file, prompts of similar length share a batch to save padding. A file is a range of
    places, so that failures move no trace to another file.
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


def _in_chat(tokenizer: Any, text: str, system: str | None) -> str:
    """Return the text of a chat up to where the model answers."""
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
    except Exception as error:  # a template is a program of the model's, and may raise anything
        said = " ".join(str(error).split())[:300] or type(error).__name__
        remedy = "without chat" if system is None else "without system, or without chat"
        raise ModelError(
            f"the chat template of {name} refuses the prompt: {said}; ask {remedy}."
        ) from error
    return str(filled)


def _refusal(
    question: Question, prompt: list[int], positions: int | None, max_new_tokens: int
) -> QuestionError | None:
    """Return why a prompt cannot be asked, if it cannot."""
    if not prompt:
        return QuestionError(
            "the prompt has no tokens; leave the question out.", question_id=question.question_id
        )
    if positions is not None and len(prompt) + max_new_tokens > positions:
        return QuestionError(
            f"the prompt has {len(prompt)} tokens, the answer may have {max_new_tokens}, but "
            f"the model has {positions} positions; shorten the question or max_new_tokens.",
            question_id=question.question_id,
        )
    return None
