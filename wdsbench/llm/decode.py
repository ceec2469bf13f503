"""Generation of answers: greedy, by beam search, or sampled.

A sampled answer depends on the seed, the question id and the trace number, not on its batch. Every
row has its own stream of random numbers, one per token, which selects the token from the cumulative
probabilities, largest first. Batch sizes change answers only through rounding in the model.
Stop texts (module ``stops``) end an answer, and a beam, as an end-of-sequence token does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import xxhash
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from wdsbench.llm.options import Decoding
from wdsbench.llm.stops import Stops

#: Padding changes logits by rounding: by less than this share of their spread.
_PADDING_SHARE: Final = 0.1
_IGNORES_PADDING: Final[WeakKeyDictionary[Any, bool]] = WeakKeyDictionary()


class Generated(NamedTuple):
    """The answer to a prompt."""

    tokens: list[int]  # at least one
    finished: bool  # True if the model, or a stop text, ended the answer
    empty: bool  # True if ``tokens`` is the token that ended the answer, alone
    straddled: bool  # True if the token that reached a stop text began with visible text


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    decoding: Decoding,
    names: Sequence[tuple[str, int]] = (),
    stop_texts: Sequence[str] = (),
) -> Iterator[Generated]:
    """Yield the answer to each prompt.

    Prompts are asked together if the model ignores padding, else one by one. ``sample`` needs
    ``names``, the (question id, trace number) of each prompt.
    """
    assert decoding.decode != "sample" or len(names) == len(prompts)
    ends, stops = _end_tokens(model, tokenizer), Stops(tokenizer, stop_texts)
    together = len(prompts) == 1 or _ignores_padding(model, tokenizer, min(prompts, key=len))
    size = len(prompts) if together else 1
    for start in range(0, len(prompts), size):
        processors = LogitsProcessorList()
        if decoding.decode == "sample":
            processors.append(_Draws(decoding, names[start : start + size]))
        batch = prompts[start : start + size]
        longest = max(map(len, batch))
        beams = decoding.beams if decoding.decode == "beam" else 1
        lengths: dict[str, Any] = {"max_new_tokens": max_new_tokens, "num_beams": beams}
        out = _generate(model, tokenizer, batch, longest, processors, stops, **lengths)
        for row in out[:, longest:].tolist():
            end = next((place for place, token in enumerate(row) if token in ends), None)
            cut, straddled = stops.cut(row[:end]) or (end, False)
            yield Generated(row[: 1 if cut == 0 else cut], cut is not None, cut == 0, straddled)


def _ignores_padding(model: Any, tokenizer: Any, prompt: list[int]) -> bool:
    """Return True if padding does not change the logits; tested once for each model.

    Recurrent models such as RWKV ignore the attention mask, so padding is text to them, and
    transformers does not separate the rows of their batches.
    """
    known = _IGNORES_PADDING.get(model)
    if known is None:
        settings: dict[str, Any] = {"max_new_tokens": 1, "num_beams": 1, "output_logits": True}
        widths = (len(prompt), len(prompt) + 1)
        alone, padded = (
            _generate(model, tokenizer, [prompt], width, return_dict_in_generate=True, **settings)
            .logits[0]
            .float()
            for width in widths
        )
        finite = alone.isfinite() & padded.isfinite()
        if not finite.any():  # the states of this prompt are NaN, with and without padding
            return True
        alone, padded = alone[finite], padded[finite]
        known = bool((alone - padded).abs().max() <= _PADDING_SHARE * alone.std(correction=0))
        _IGNORES_PADDING[model] = known
    return known


def _generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[int]],
    width: int,
    processors: LogitsProcessorList | None = None,
    stops: Stops | None = None,
    **settings: Any,
) -> Any:
    """Generate after prompts that are padded on the left to ``width``."""
    ids = torch.full((len(prompts), width), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    # Set everything that changes the answer: None means the model's own generation settings.
    chosen = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,  # also for `sample`: _Draws leaves one token
        num_return_sequences=1,
        length_penalty=1.0,
        early_stopping=False,
        temperature=1.0,
        top_p=1.0,
        top_k=50,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        use_cache=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(_end_tokens(model, tokenizer)) or None,
        **settings,
    )
    with torch.inference_mode():
        return model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=chosen,
            logits_processor=processors or LogitsProcessorList(),
            stopping_criteria=StoppingCriteriaList([stops.criterion(width)] if stops else []),
        )


class _Draws(LogitsProcessor):
    """Draws a token for every row and masks all others."""

    def __init__(self, decoding: Decoding, names: Sequence[tuple[str, int]]) -> None:
        self._decoding = decoding
        self._streams = [_stream(decoding.seed, *name) for name in names]

    def __call__(self, input_ids: Any, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return scores of 0 for the drawn tokens and -inf for all others."""
        place = scores.device
        if place.type == "mps":  # it has no float64
            scores = scores.cpu()
        values, tokens = (scores.float() / self._decoding.temperature).sort(
            dim=-1, descending=True, stable=True
        )
        reached = values.softmax(dim=-1, dtype=torch.float64).cumsum(dim=-1)
        # The first token that reaches top_p may be drawn, too.
        last = (reached < self._decoding.top_p).sum(dim=-1, keepdim=True)
        last.clamp_(max=scores.shape[-1] - 1)
        numbers = torch.tensor([[stream.random()] for stream in self._streams])
        aim = numbers.to(reached) * reached.gather(1, last)
        drawn = (reached <= aim).sum(dim=-1, keepdim=True).minimum(last)
        kept = torch.full_like(scores, -torch.inf).scatter(1, tokens.gather(1, drawn), 0.0)
        return kept.to(place)


def _stream(seed: int, question_id: str, trace_number: int) -> np.random.Generator:
    name = f"{seed}\0{trace_number}\0{question_id}".encode()
    return np.random.Generator(np.random.Philox(key=xxhash.xxh3_128_intdigest(name)))


def _end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Return the ids that end an answer; chat models often have one in the tokenizer alone."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    models = [ends] if isinstance(ends, int) else ends or []
    return {int(token) for token in (*models, tokenizer.eos_token_id) if token is not None}
