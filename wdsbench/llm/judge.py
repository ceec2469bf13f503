"""Scores of answers by a sequence-classification or regression checkpoint.

The model reads pairs (reference, answer). A model with one output (such as BLEURT) returns the
score; of a classifier the score is the probability of the class that means "right".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from wdsbench.errors import ModelError
from wdsbench.llm.model import check_weights, checked_device, loading
from wdsbench.llm.options import ScoreOptions
from wdsbench.progress import Progress, no_progress

#: Default names of the class that means "right", in lower case.
RIGHT_LABELS: Final = (
    "entailment",
    "correct",
    "right",
    "equivalent",
    "paraphrase",
    "duplicate",
    "true",
    "yes",
)
_BATCH: Final = 64
_DEFAULT_POSITIONS: Final = 512
#: Model types whose first position is the padding token's id + 1.
_OFFSET_POSITIONS: Final = ("roberta", "xlm-roberta", "camembert", "mpnet")


class Judge:
    """Scores answers against references.

    ``path`` is a folder in the transformers format, or a name on its hub; ``label`` the class that
    means "right" (None: the one named in ``RIGHT_LABELS``).

    Raises:
        ValueError: There is no such device.
        ModelError: The model cannot be loaded, lacks a head, or no single class means "right".
    """

    def __init__(
        self, path: str | Path, label: str | None = None, device: str | torch.device = "cpu"
    ) -> None:
        source, place = str(path), checked_device(device)
        with loading(source):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            model: Any
            model, loaded = AutoModelForSequenceClassification.from_pretrained(
                source, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
            )
        check_weights(source, loaded, "for sequence classification")
        self._model = model.train(False).to(place)
        self._right = _right_label(source, dict(self._model.config.id2label), label)
        self._longest = min(_positions(self._model.config), self._tokenizer.model_max_length)
        self.cut = 0  # number of pairs that were too long and were cut

    def score(
        self,
        answers: Sequence[str],
        references: Sequence[Sequence[str]],
        progress: Progress = no_progress,
    ) -> list[float]:
        """Return the best score of each answer against any of its references."""
        pairs = {
            (reference, answer): float("nan")
            for answer, own in zip(answers, references, strict=True)
            for reference in own
        }
        # Sorted by length, so that batches need little padding.
        order = sorted(pairs, key=lambda pair: (len(pair[0]) + len(pair[1]), pair))
        starts = range(0, len(order), _BATCH)
        for start in progress(starts, len(starts), "judging"):
            batch = order[start : start + _BATCH]
            pairs.update(zip(batch, self._score_pairs(batch), strict=True))
        return [
            max(pairs[reference, answer] for reference in own)
            for answer, own in zip(answers, references, strict=True)
        ]

    def _score_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        whole = self._tokenizer(first, second, verbose=False)["input_ids"]
        self.cut += sum(len(ids) > self._longest for ids in whole)
        inputs = self._tokenizer(
            first,
            second,
            padding=True,
            truncation=True,
            max_length=self._longest,
            return_tensors="pt",
        )
        with torch.inference_mode():
            logits = self._model(**inputs.to(self._model.device)).logits.float()
        scores = logits[:, 0] if self._right is None else logits.softmax(-1)[:, self._right]
        found: list[float] = scores.cpu().tolist()
        return found


def _positions(config: Any) -> int:
    positions = getattr(config, "max_position_embeddings", None) or _DEFAULT_POSITIONS
    if config.model_type in _OFFSET_POSITIONS:
        positions -= config.pad_token_id + 1
    return int(positions)


def _right_label(source: str, names: dict[int, str], wanted: str | None) -> int | None:
    """Return the class that means "right"; None if the model has one output."""
    if len(names) == 1:
        return None
    expected = RIGHT_LABELS if wanted is None else (wanted.lower(),)
    found = [number for number, name in names.items() if str(name).lower() in expected]
    if len(found) != 1:
        said = "none or several mean right" if wanted is None else f"{wanted!r} is not one of them"
        raise ModelError(
            f"model {source} has the classes {', '.join(map(str, names.values()))}; {said};"
            " name one with --model-label."
        )
    return int(found[0])


def load_judges(options: ScoreOptions) -> dict[str, Judge]:
    """Load the models of ``options.model``; return them by column."""
    named = named_models("model", options.model)
    return {
        column: Judge(path, options.model_label, options.device) for column, path in named.items()
    }


def named_models(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the paths of models by column; ``texts`` are ``PATH`` or ``COLUMN=PATH``.

    Raises:
        ValueError: Two columns have the same name; ``option`` is named.
    """
    named = [_column_and_path(text) for text in texts]
    columns = [column for column, _ in named]
    if len(set(columns)) < len(columns):
        raise ValueError(
            f"--{option} gives the columns {', '.join(columns)}; name each by --{option}"
            " COLUMN=PATH"
        )
    return dict(named)


def _column_and_path(text: str) -> tuple[str, str]:
    """Return column and path of ``COLUMN=PATH``; the default column is the folder's name.

    With BLEURT in the name it is ``bleurt_score``, the default column of packing.
    """
    column, equals, path = text.partition("=")
    if equals and re.fullmatch(r"\w+", column):
        return column, path
    name = Path(text).name.lower().removesuffix(".gguf")
    return "bleurt_score" if "bleurt" in name else re.sub(r"\W+", "_", name).strip("_"), text
