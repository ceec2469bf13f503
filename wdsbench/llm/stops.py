"""Texts that end an answer, such as a newline or the next question of a few-shot prompt.

An answer ends before the first token whose text reaches a stop text. The tokens of an answer are
decoded together, since a character may take several tokens and a stop text may begin within a
token. Such a straddling token is left out with the visible text that it has before the stop text.
What follows the stop text plays no role, so that answers do not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import StoppingCriteria


class Stops:
    """Finds the stop texts ``texts`` in answers of the model of ``tokenizer``."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._texts = tuple(texts)

    def __bool__(self) -> bool:
        """Return True if there is a stop text."""
        return bool(self._texts)

    def reached(self, tokens: Sequence[int]) -> bool:
        """Return True if the text of ``tokens`` has a stop text."""
        text = self._decode(tokens)
        return any(stop in text for stop in self._texts)

    def cut(self, tokens: Sequence[int]) -> tuple[int, bool] | None:
        """Return the number of tokens before the first stop text, and True if the next one
        straddles it; None if there is no stop text.
        """
        if not self or not self.reached(tokens):
            return None
        # The shortest beginning that has a stop text is where generation stops.
        end = next(end for end in range(1, len(tokens) + 1) if self.reached(tokens[:end]))
        text = self._decode(tokens[:end])
        before = text[: min(text.find(stop) for stop in self._texts if stop in text)]
        for count in range(end - 1, -1, -1):
            kept = self._decode(tokens[:count])
            if before.startswith(kept):
                return count, bool(before[len(kept) :].strip())
        raise AssertionError("no tokens have no text")

    def criterion(self, prompt_tokens: int) -> StoppingCriteria:
        """Return the criterion of generation after prompts that are padded to ``prompt_tokens``."""
        return _Reached(self, prompt_tokens)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(
            self._tokenizer.decode(
                tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )


class _Reached(StoppingCriteria):
    def __init__(self, stops: Stops, prompt_tokens: int) -> None:
        self._stops = stops
        self._prompt_tokens = prompt_tokens

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG002
        """Return True for each row whose answer has a stop text."""
        answers = input_ids[:, self._prompt_tokens :].tolist()
        done = [self._stops.reached(answer) for answer in answers]
        return torch.tensor(done, device=input_ids.device)
