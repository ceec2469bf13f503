"""Texts of traces, for controls: detectors that see none of the model's states.

Each function takes a batch with the field ``meta``. If one trace lacks the text, the control is
"not available" for the whole data set, as in `baselines`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsbench.errors import DetectorError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wdsbench.records import Batch

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Return the words of a text, without their case."""
    return _WORD.findall(text.casefold())


def answers(batch: Batch) -> list[str]:
    """Return the answer of each trace: its text, or its tokens if no text is stored.

    Raises:
        DetectorError: A trace has neither.
    """
    return [_answer(key, meta) for key, meta in _stored(batch)]


def questions(batch: Batch) -> list[str]:
    """Return the question of each trace, or its decoded prompt tokens if no question is stored.

    Raises:
        DetectorError: A trace has neither.
    """
    found = []
    for key, meta in _stored(batch):
        question = meta.get("question")
        if not isinstance(question, str):
            question = _tokens(meta, "prompt") if meta.get("token_texts") else None
        if question is None:
            raise DetectorError(
                f"not available: trace {key} has no question and no decoded prompt tokens; pack"
                " traces with question, or with tokens_decoded and prompt_length"
            )
        found.append(question)
    return found


def similarity(batch: Batch) -> NDArray[np.float64]:
    """Return the share of the answer's words that are in the context, float64 ``[B]``; 0 of an
    answer without words.

    Raises:
        DetectorError: A trace has no context, or no answer.
    """
    scores = np.zeros(len(batch), np.float64)
    for place, (key, meta) in enumerate(_stored(batch)):
        context = meta.get("context")
        if not isinstance(context, str):
            raise DetectorError(
                f"not available: trace {key} has no context; pack traces with context"
            )
        said, there = words(_answer(key, meta)), set(words(context))
        if said:
            scores[place] = sum(word in there for word in said) / len(said)
    return scores


def _stored(batch: Batch) -> Iterator[tuple[str, dict[str, Any]]]:
    assert batch.meta is not None, "the loader was asked for meta"
    return zip(batch.keys, batch.meta, strict=True)


def _answer(key: str, meta: dict[str, Any]) -> str:
    answer = meta.get("answer")
    if isinstance(answer, str) and answer:
        return answer
    # An answer that is the end-of-sequence token alone has no text.
    tokens = _tokens(meta, "answer")
    if tokens is None:
        raise DetectorError(
            f"not available: trace {key} has no text of the answer and no tokens of known"
            " prompt_length; pack traces with generated_answer_clean"
        )
    return tokens


def _tokens(meta: dict[str, Any], part: str) -> str | None:
    """Return the texts of the prompt's or the answer's tokens, joined, or their numbers with
    blanks; None if they are unknown.
    """
    prompt = meta.get("prompt_length")
    if not isinstance(prompt, int):
        return None
    chosen = slice(None, prompt) if part == "prompt" else slice(prompt, None)
    if meta.get("token_texts"):
        return "".join(map(str, meta["token_texts"][chosen]))
    return " ".join(map(str, meta["tokens"][chosen])) if meta.get("tokens") else None
