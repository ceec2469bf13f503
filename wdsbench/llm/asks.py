"""What a model is asked: a prompt for every answer that is wanted, and which go together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import xxhash

from wdsbench.errors import QuestionError
from wdsbench.llm.questions import Question

TEMPLATE_SLOT: Final = "{question}"


@dataclass(frozen=True)
class Ask:
    """One answer that is wanted.

    Attributes:
        place: Among all asks, from 0.
        question: The question.
        trace_number: Which of its answers, from 0.
        prompt: Token ids.
        refusal: Why it cannot be asked; None: it can.
    """

    place: int
    question: Question
    trace_number: int
    prompt: list[int]
    refusal: QuestionError | None


@dataclass(frozen=True)
class Batch:
    """What is asked at once.

    Attributes:
        number: Among all batches, from 0.
        file: The trace file it belongs to, from 1.
        asks: In the order of their lengths.
        closes_file: Whether it is the last of its file.
    """

    number: int
    file: int
    asks: list[Ask]
    closes_file: bool


def make_asks(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    template: str,
    max_new_tokens: int,
    answers_per_question: int = 1,
) -> list[Ask]:
    """Return ``answers_per_question`` asks for each question, in their order."""
    texts = [template.replace(TEMPLATE_SLOT, question.question) for question in questions]
    prompts: list[list[int]] = tokenizer(texts)["input_ids"]
    positions = getattr(model.config, "max_position_embeddings", None)
    asks: list[Ask] = []
    for question, prompt in zip(questions, prompts, strict=True):
        refusal = _refusal(question, prompt, positions, max_new_tokens)
        for trace_number in range(answers_per_question):
            asks.append(Ask(len(asks), question, trace_number, prompt, refusal))
    return asks


def digest_of(asks: Sequence[Ask]) -> str:
    """Return 16 hex digits of everything that is asked, and in which order."""
    digest = xxhash.xxh3_64()
    for ask in asks:
        digest.update(repr((ask.question.question_id, ask.trace_number, ask.prompt)).encode())
    return digest.hexdigest()


def plan_batches(asks: Sequence[Ask], traces_per_file: int, batch_size: int) -> Iterator[Batch]:
    """Yield the batches of all asks that are not refused.

    Within a file, prompts of similar length go together, since padding is work for nothing. A file
    is a range of places, so that what fails moves no trace to another file.
    """
    number = 0
    for file, first in enumerate(range(0, len(asks), traces_per_file), start=1):
        own = [ask for ask in asks[first : first + traces_per_file] if ask.refusal is None]
        own.sort(key=lambda ask: len(ask.prompt))
        for start in range(0, len(own), batch_size):
            yield Batch(
                number, file, own[start : start + batch_size], start + batch_size >= len(own)
            )
            number += 1


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
