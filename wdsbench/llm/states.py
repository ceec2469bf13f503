"""The second pass of extraction: states and attention of answered questions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.errors import ModelError
from wdsbench.llm.attention import BatchMaps, RefusedTraceError
from wdsbench.llm.model import padded
from wdsbench.llm.questions import Question
from wdsbench.traces.attention import AttentionRules


@dataclass(frozen=True)
class Answered:
    """A question with its answer from the first pass."""

    question: Question
    prompt: list[int]  # token ids
    answer: list[int]  # token ids, at least one
    finished: bool  # True if the model, or a stop text, ended the answer
    empty: bool  # True if the answer is the token that ended it, alone
    straddled: bool = False  # True if a stop text cut a token with visible text before it
    trace_number: int | None = None  # None if the question has one answer


@dataclass
class StateReader:
    """The second pass: answered questions to raw traces.

    The model needs ``eager`` attention. ``layers`` (None: all) selects states and attention;
    ``tokens`` (``all``, ``answer`` or ``last``) selects states.
    """

    model: Any
    tokenizer: Any
    attention: AttentionRules
    layers: Sequence[int] | None = None
    tokens: str = "all"
    texts: dict[int, str] = field(default_factory=dict)  # token id -> text

    def outcomes(
        self, answered: Sequence[Answered]
    ) -> Iterator[dict[str, Any] | RefusedTraceError]:
        """Yield the raw trace of each answered question, or its error."""
        tokens = [item.prompt + item.answer for item in answered]
        ids, mask = padded(self.tokenizer, tokens)
        longest = ids.shape[1]
        # Logits [V] before the first answer are not needed.
        first_logit = min(len(item.prompt) for item in answered) - 1
        maps = BatchMaps(
            [(item.question.question_id, len(item.prompt), len(item.answer)) for item in answered],
            self.attention,
            self.layers,
        )
        with torch.inference_mode(), maps.collect(self.model):
            out = self.model(
                input_ids=ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                output_hidden_states=True,
                output_attentions=False,  # would keep those of all layers
                use_cache=False,
                **self._optional(ids, longest - first_logit),
            )
            first_logit = longest - out.logits.shape[1]  # some models return all
            logprobs = _answer_logprobs(out.logits, first_logit, answered)
            found, chosen, exact = self._chosen_states(out)
            half = np.stack([layer.to(torch.float16).cpu().numpy() for layer in exact], axis=1)
        maps.require_layers(found)
        decoded = self.tokenizer.batch_decode(
            [item.answer for item in answered], skip_special_tokens=True
        )
        start = 0
        for row, item in enumerate(answered):
            length, count = len(tokens[row]), len(item.answer)
            own = logprobs[start : start + count]
            start += count
            first = {"all": 0, "answer": length - count, "last": length - 1}[self.tokens]
            own_half = half[row, :, first:length]
            own_exact = [layer[row, first:length] for layer in exact]
            fits = bool(np.isfinite(own_half).all())
            try:
                raw: dict[str, Any] = {
                    "hidden_states": list(own_half.copy())
                    if fits
                    else _wide_states(item, own_exact, chosen),
                    "tokens": tokens[row],
                    "tokens_decoded": [self._text(token) for token in tokens[row]],
                    "generated_answer_clean": "" if item.empty else decoded[row].strip(),
                    "question_id": item.question.question_id,
                    "prompt_length": len(item.prompt),
                    "token_logprobs": own,
                }
                for name in ("question", "context", "group"):
                    if getattr(item.question, name) is not None:
                        raw[name] = getattr(item.question, name)
                raw.update(maps.raw(row))
            except RefusedTraceError as refused:
                yield refused
                continue
            if self.layers is not None:
                raw["layers"] = chosen
            if self.tokens != "all":
                raw["states_of"] = self.tokens
            if item.trace_number is not None:
                raw["trace_number"] = item.trace_number
            yield raw

    def _optional(self, ids: torch.Tensor, logit_count: int) -> dict[str, Any]:
        """Return arguments that not all models have."""
        parameters = inspect.signature(self.model.forward).parameters
        optional: dict[str, Any] = {}
        if "position_ids" in parameters:
            places = torch.arange(ids.shape[1]).expand_as(ids)
            optional["position_ids"] = places.to(self.model.device)
        if "logits_to_keep" in parameters:
            optional["logits_to_keep"] = logit_count
        return optional

    def _chosen_states(self, out: Any) -> tuple[int, list[int], list[torch.Tensor]]:
        """Return the number of layers, the layers to keep and their states ``[B, T, D]``."""
        states = out.hidden_states
        if states is None or len(states) < 2:
            raise ModelError("the model returns no hidden states; it cannot be traced.")
        found = len(states) - 1
        chosen = list(range(found) if self.layers is None else self.layers)
        if max(chosen) >= found:
            raise ModelError(
                f"layer {max(chosen)} is asked for, but the model returns {found} layers; expected "
                f"0 .. {found - 1}."
            )
        return found, chosen, [states[layer + 1] for layer in chosen]

    def _text(self, token: int) -> str:
        text = self.texts.get(token)
        if text is None:
            text = self.texts[token] = str(self.tokenizer.decode([token]))
        return text


def _wide_states(
    item: Answered, states: Sequence[torch.Tensor], layers: Sequence[int]
) -> list[NDArray[np.float32]]:
    """Return the states ``[t, D]`` of each layer as float32; none may be NaN."""
    wide = np.stack([layer.float().cpu().numpy() for layer in states])
    bad = np.isnan(wide).any(axis=(1, 2))
    if bad.any():
        raise RefusedTraceError(
            f"question {item.question.question_id}, layer {layers[int(bad.argmax())]}: the model's "
            "states are NaN; load it as float32 or bfloat16."
        )
    return list(wide)


def _answer_logprobs(
    logits: torch.Tensor, first_logit: int, answered: Sequence[Answered]
) -> NDArray[np.float32]:
    """Return the log-probabilities of all answer tokens of the batch, trace by trace.

    ``logits`` are ``[B, T - first_logit, V]``; those of place t predict token t + 1.
    """
    rows = [row for row, item in enumerate(answered) for _ in item.answer]
    places = [len(item.prompt) - 1 + i for item in answered for i in range(len(item.answer))]
    targets = torch.tensor([token for item in answered for token in item.answer])
    picked = logits[torch.tensor(rows), torch.tensor(places) - first_logit].float()
    chosen = picked.gather(1, targets.to(picked.device)[:, None])[:, 0]
    found: NDArray[np.float32] = (chosen - picked.logsumexp(dim=1)).cpu().numpy()
    return found
