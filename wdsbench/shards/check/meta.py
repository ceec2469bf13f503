"""``meta.json`` of one sample compared with index and table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.shards.check.arrays import MemberProblem
from wdsbench.shards.check.expected import ExpectedSample
from wdsbench.shards.format.kinds import META

#: Log-softmax in low precision ends a little above 0.
_LOGPROB_MAX: Final = 1e-2


def meta_problems(expected: ExpectedSample, data: NDArray[np.uint8]) -> list[MemberProblem]:
    """Return what is wrong with the bytes of a ``meta.json``."""
    try:
        meta = json.loads(data.tobytes())
    except ValueError as error:
        place = error.pos if isinstance(error, json.JSONDecodeError) else 0
        return [MemberProblem("meta", META, place, f"not JSON: {error}")]
    if not isinstance(meta, dict):
        return [MemberProblem("meta", META, 0, f"a JSON {type(meta).__name__}, expected an object")]
    if not expected.has_table:
        return []
    return [MemberProblem("meta", META, 0, detail) for detail in _disagreements(meta, expected)]


def _disagreements(meta: dict[str, Any], expected: ExpectedSample) -> Iterator[str]:
    """Yield where ``meta.json`` differs from the table or the index."""
    row = expected.row
    numbers = None if expected.model_layers is None else list(expected.model_layers)
    if meta.get("layers") != numbers:
        yield f"layers is {meta.get('layers')!r}, the index says {numbers!r}"
    prompt = None if row.prompt_length < 0 else row.prompt_length
    for name, table in (
        ("question_id", row.question_id),
        ("trace", row.trace),
        ("prompt_length", prompt),
    ):
        if meta.get(name) != table:
            yield f"{name} is {meta.get(name)!r}, the table says {table!r}"
    tokens, texts, logprobs = (
        meta.get(name) for name in ("tokens", "token_texts", "token_logprobs")
    )
    if not isinstance(tokens, list) or len(tokens) not in (0, row.tokens):
        seen = len(tokens) if isinstance(tokens, list) else type(tokens).__name__
        yield f"tokens: {seen}, the table says {row.tokens}"
    if not isinstance(texts, list) or len(texts) not in (0, row.tokens):
        seen = len(texts) if isinstance(texts, list) else type(texts).__name__
        yield f"token_texts: {seen}, expected {row.tokens} or none"
    if logprobs is None:
        return
    if prompt is None or not isinstance(logprobs, list) or len(logprobs) != row.tokens - prompt:
        seen = len(logprobs) if isinstance(logprobs, list) else type(logprobs).__name__
        yield f"token_logprobs: {seen}, expected one for each token of the answer"
    elif not all(_is_logprob(value) for value in logprobs):
        yield "token_logprobs holds a value that is not the logarithm of a probability"


def _is_logprob(value: object) -> bool:
    if value is None:  # minus infinity, which JSON does not have
        return True
    return isinstance(value, int | float) and value <= _LOGPROB_MAX
