"""Scores of answers by a causal language model that is asked whether they are right.

The model reads question, references and answer, and the score is the probability of "yes" as its
next word, relative to "yes" and "no" in any case, so that 0.5 separates them also in a model that
says neither. Source: the probability of one of two words as a judgement, Kadavath et al. 2022
(section 3, P(True)); a language model as a judge of free answers, Zheng et al. 2023.

Prompts are padded on the right, where a causal model does not look. Each finished batch is appended
to a journal beside the CSV, by which the same command continues after an interruption:

    {"model": "2f6c..."}                                 digest of the model
    {"prompts": ["81d0...", ...], "yes": [0.93, ...]}    digests of prompts, and their scores
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
import xxhash

from wdsbench.errors import ModelError, ScoreError
from wdsbench.jsonlines import JsonLinesError, JsonLinesWriter, read_json_lines
from wdsbench.llm.asks import in_chat
from wdsbench.llm.judge import named_models
from wdsbench.llm.model import load_model, model_fingerprint, padded, quiet_transformers
from wdsbench.llm.options import ModelOptions, ScoreOptions
from wdsbench.progress import Progress, no_progress

if TYPE_CHECKING:
    from wdsbench.llm.score import ScoredAnswer

SLOTS: Final = ("{question}", "{references}", "{answer}")
TEMPLATE: Final = """Question: {question}
Right answers: {references}
Given answer: {answer}
Is the given answer right, that is, does it agree with one of the right answers? Say yes or no.
Answer:"""

_SLOT: Final = re.compile("|".join(map(re.escape, SLOTS)))
_WORDS: Final = {word: (word, word.title(), word.upper()) for word in ("yes", "no")}
#: Limits of a batch. The last one bounds the logits, which are computed at every last token.
_BATCH_PROMPTS: Final = 32
_BATCH_TOKENS: Final = 4096
_BATCH_LENGTHS: Final = 16


class LanguageJudge:
    """Scores answers against references.

    ``path`` is a folder in the transformers format, a GGUF file or a name on the hub. A tokenizer
    with a chat template makes the prompt the user's message.

    Raises:
        ValueError: There is no such device, or ``template`` has no ``{answer}``.
        ModelError: The model cannot be loaded, or no token tells "yes" from "no".
    """

    def __init__(
        self, path: str | Path, template: str = TEMPLATE, device: str | None = None
    ) -> None:
        if SLOTS[-1] not in template:
            raise ValueError(f"the judge's template does not contain {SLOTS[-1]}.")
        self._template = template
        self._model, self._tokenizer = load_model(path, ModelOptions(device=device))
        first = {word: self._first_tokens(variants) for word, variants in _WORDS.items()}
        self._tokens = [sorted(first["yes"] - first["no"]), sorted(first["no"] - first["yes"])]
        if not all(self._tokens):
            raise ModelError(
                f'model {path}: its tokenizer has no token for "yes" or none for "no"; give a model'
                " that writes English."
            )
        self._positions = getattr(self._model.config, "max_position_embeddings", None)
        parameters = inspect.signature(self._model.forward).parameters
        self._chooses_logits = "logits_to_keep" in parameters
        self.too_long = 0  # number of prompts that exceed the model's positions

    def score(
        self,
        answers: Sequence[ScoredAnswer],
        journal: Path,
        progress: Progress = no_progress,
    ) -> list[float]:
        """Return the probability that each answer is right, NaN if its prompt is too long.

        Scores in ``journal``, of an earlier call with the same model, are not computed again.

        Raises:
            ValueError: The journal is damaged, or another process is writing it.
            ScoreError: The model gives NaN.
        """
        texts = [self._prompt(answer) for answer in answers]
        distinct = list(dict.fromkeys(texts))
        with quiet_transformers():
            tokens: list[list[int]] = self._tokenizer(
                distinct, add_special_tokens=not self._in_chat
            )["input_ids"]
        prompts = dict(zip(distinct, tokens, strict=True))
        fitting = {
            text: own
            for text, own in prompts.items()
            if self._positions is None or len(own) <= self._positions
        }
        self.too_long = sum(text not in fitting for text in texts)
        model = model_fingerprint(self._model)
        scores, end_bytes = _read_journal(journal, model)
        batches = list(_batches(fitting))
        with _locked(journal) as lines:
            lines.truncate(end_bytes)
            if end_bytes == 0:
                lines.append({"model": model})
            for batch in progress(batches, len(batches), "judging"):
                names = [_digest(text) for text in batch]
                if not all(name in scores for name in names):
                    found = self._score([fitting[text] for text in batch])
                    lines.append({"prompts": names, "yes": found})
                    scores.update(zip(names, found, strict=True))
        return [scores.get(_digest(text), float("nan")) for text in texts]

    @property
    def _in_chat(self) -> bool:
        return bool(getattr(self._tokenizer, "chat_template", None))

    def _prompt(self, answer: ScoredAnswer) -> str:
        texts = (answer.question, "; ".join(answer.references), answer.text)
        values = dict(zip(SLOTS, texts, strict=True))
        text = _SLOT.sub(lambda slot: values[slot[0]], self._template)
        return in_chat(self._tokenizer, text, None) if self._in_chat else text

    def _first_tokens(self, words: Sequence[str]) -> set[int]:
        texts = [text for word in words for text in (word, f" {word}")]
        ids = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        return {own[0] for own in ids if own and own[0] != self._tokenizer.unk_token_id}

    def _score(self, prompts: Sequence[list[int]]) -> list[float]:
        ids, mask = padded(self._tokenizer, prompts)
        lasts = np.array([len(prompt) - 1 for prompt in prompts])
        kept, places = np.unique(lasts, return_inverse=True)
        device = self._model.device
        chosen = {}
        if self._chooses_logits:
            chosen["logits_to_keep"] = torch.from_numpy(kept).to(device)
            lasts = places
        with torch.inference_mode():
            logits = self._model(
                input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False, **chosen
            ).logits
        own = logits[torch.arange(len(prompts)), torch.from_numpy(lasts)].float()
        yes, no = (own[:, tokens].logsumexp(dim=1) for tokens in self._tokens)
        found: list[float] = (yes - no).sigmoid().cpu().tolist()
        if any(score != score for score in found):
            raise ScoreError("the judge's logits are NaN; use another model.")
        return found


def _batches(prompts: dict[str, list[int]]) -> Iterator[list[str]]:
    """Yield the texts of prompts in batches of similar lengths."""
    batch: list[str] = []
    for text in sorted(prompts, key=lambda text: (len(prompts[text]), text)):
        length = len(prompts[text])
        if batch and (
            len(batch) == _BATCH_PROMPTS
            or length * (len(batch) + 1) > _BATCH_TOKENS
            or length - len(prompts[batch[0]]) >= _BATCH_LENGTHS
        ):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def _digest(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


def _read_journal(path: Path, model: str) -> tuple[dict[str, float], int]:
    """Return the scores of ``model`` in a journal, and the offset at which the next are written."""
    scores: dict[str, float] = {}
    try:
        records, end_bytes = read_json_lines(path)
        if not records or records[0].get("model") != model:
            return {}, 0
        for record in records[1:]:
            scores.update(zip(record["prompts"], record["yes"], strict=True))
    except (JsonLinesError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a journal of a judge ({error}); remove it.") from error
    return scores, end_bytes


def _locked(path: Path) -> JsonLinesWriter:
    try:
        return JsonLinesWriter(path)
    except BlockingIOError as error:
        raise ValueError(
            f"{path} is being written by another process; wait for it, or choose another --out."
        ) from error


def load_language_judges(options: ScoreOptions) -> dict[str, LanguageJudge]:
    """Load the models of ``options.judge``; return them by column."""
    template = TEMPLATE
    if options.judge_template is not None:
        path = options.judge_template
        try:
            template = path.read_text(encoding="utf-8-sig").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--judge-template {path} cannot be read: {error}.") from error
    named = named_models("judge", options.judge)
    return {
        f"judge_{name}": LanguageJudge(path, template, options.device)
        for name, path in named.items()
    }
