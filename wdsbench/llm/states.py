"""The two passes of extraction over one batch: answers, then the states behind them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig

from wdsbench.errors import ModelError
from wdsbench.llm.attention import BatchMaps
from wdsbench.llm.questions import Question
from wdsbench.traces.attention import AttentionRules


@dataclass(frozen=True)
class Answered:
    """A question with its answer, as the first pass leaves it.

    Attributes:
        question: The question.
        prompt: The prompt's token ids.
        answer: The answer's token ids, at least one.
        finished: Whether the model itself ended the answer.
        empty: Whether the answer is the end-of-sequence token alone.
    """

    question: Question
    prompt: list[int]
    answer: list[int]
    finished: bool
    empty: bool


def generate(
    model: Any, tokenizer: Any, prompts: Sequence[list[int]], max_new_tokens: int
) -> Iterator[tuple[list[int], bool, bool]]:
    """Yield (answer tokens, finished, empty) for each prompt, greedily."""
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    ends = _end_tokens(model, tokenizer)
    # Everything that could make the answer another than the greedy one is set here: what is None
    # would be taken from the model's own generation settings.
    greedy = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        num_beams=1,
        temperature=1.0,
        top_p=1.0,
        top_k=50,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        max_new_tokens=max_new_tokens,
        use_cache=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(ends) or None,
    )
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=greedy,
        )
    for row in out[:, longest:].tolist():
        stop = next((place for place, token in enumerate(row) if token in ends), None)
        if stop == 0:
            yield row[:1], True, True
        else:
            yield row[:stop], stop is not None, False


def _end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Return the ids that end an answer: the model's, or else the tokenizer's."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    if ends is None:
        ends = tokenizer.eos_token_id
    if ends is None:
        return set()
    return {int(ends)} if isinstance(ends, int) else {int(token) for token in ends}


class StateReader:
    """The second pass: answered questions to raw traces."""

    def __init__(self, model: Any, tokenizer: Any, attention: AttentionRules) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.attention = attention
        self.parameters = inspect.signature(model.forward).parameters
        self.texts: dict[int, str] = {}  # token id -> text

    def read(self, answered: Sequence[Answered]) -> Iterator[dict[str, Any]]:
        """Yield the raw trace of each answered question, in their order."""
        tokens = [item.prompt + item.answer for item in answered]
        longest = max(map(len, tokens))
        ids = torch.full((len(tokens), longest), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, trace in enumerate(tokens):
            ids[row, : len(trace)] = torch.tensor(trace)
            mask[row, : len(trace)] = 1
        # Logits before the first answer token are not looked at, and are V wide.
        first_logit = min(len(item.prompt) for item in answered) - 1
        maps = BatchMaps(
            [(item.question.question_id, len(item.prompt), len(item.answer)) for item in answered],
            self.attention,
        )
        with torch.inference_mode(), maps.taken_from(self.model):
            out = self.model(
                input_ids=ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                output_hidden_states=True,
                output_attentions=False,  # transformers would keep those of all layers
                use_cache=False,
                **self._optional(ids, longest - first_logit),
            )
            first_logit = longest - out.logits.shape[1]  # a model may return them all
            logprobs = _answer_logprobs(out.logits, first_logit, answered)
            hidden, exact = self._hidden(out)
        maps.require_layers(len(out.hidden_states) - 1)
        decoded = self.tokenizer.batch_decode(
            [item.answer for item in answered], skip_special_tokens=True
        )
        start = 0
        for row, item in enumerate(answered):
            length, count = len(tokens[row]), len(item.answer)
            raw: dict[str, Any] = {
                "hidden_states": self._states(item, hidden[row, :, :length], exact, row),
                "tokens": tokens[row],
                "tokens_decoded": [self._text(token) for token in tokens[row]],
                "generated_answer_clean": "" if item.empty else decoded[row].strip(),
                "question_id": item.question.question_id,
                "prompt_length": len(item.prompt),
                "token_logprobs": logprobs[start : start + count],
            }
            raw.update(maps.raw(row))
            start += count
            yield raw

    def _optional(self, ids: torch.Tensor, logit_count: int) -> dict[str, Any]:
        """Return arguments that most models take, not all."""
        optional: dict[str, Any] = {}
        if "position_ids" in self.parameters:
            places = torch.arange(ids.shape[1]).expand_as(ids)
            optional["position_ids"] = places.to(self.model.device)
        if "logits_to_keep" in self.parameters:
            optional["logits_to_keep"] = logit_count
        return optional

    def _hidden(self, out: Any) -> tuple[NDArray[np.float16], torch.Tensor]:
        """Return states float16 ``[B, L, T, D]``, and the same as the model gave them."""
        states = out.hidden_states
        if states is None or len(states) < 2:
            raise ModelError("the model returns no hidden states; it cannot be traced.")
        exact = torch.stack(states[1:], dim=1)
        return exact.to(torch.float16).cpu().numpy(), exact

    def _states(
        self, item: Answered, states: NDArray[np.float16], exact: torch.Tensor, row: int
    ) -> list[NDArray[Any]]:
        """Return L arrays ``[T, D]``: float16 where all values fit, else float32."""
        if bool(np.isfinite(states).all()):
            return list(states.copy())
        wide = exact[row, :, : states.shape[1]].float().cpu().numpy()
        if np.isnan(wide).any():
            raise ModelError(
                f"question {item.question.question_id}: the model's states are NaN; "
                "load it as float32 or bfloat16."
            )
        return list(wide)

    def _text(self, token: int) -> str:
        text = self.texts.get(token)
        if text is None:
            text = self.texts[token] = str(self.tokenizer.decode([token]))
        return text


def _answer_logprobs(
    logits: torch.Tensor, first_logit: int, answered: Sequence[Answered]
) -> NDArray[np.float32]:
    """Return the log-probabilities of all answer tokens of the batch, one trace after the other.

    Args:
        logits: ``[B, T - first_logit, V]``; place t holds the prediction of token t + 1.
        first_logit: The place of the first of them.
        answered: The batch.
    """
    rows = [row for row, item in enumerate(answered) for _ in item.answer]
    places = [len(item.prompt) - 1 + i for item in answered for i in range(len(item.answer))]
    targets = torch.tensor([token for item in answered for token in item.answer])
    picked = logits[torch.tensor(rows), torch.tensor(places) - first_logit].float()
    chosen = picked.gather(1, targets.to(picked.device)[:, None])[:, 0]
    found: NDArray[np.float32] = (chosen - picked.logsumexp(dim=1)).cpu().numpy()
    return found
