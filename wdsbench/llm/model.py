"""Load a causal language model and its tokenizer the way extraction needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from wdsbench.errors import ModelError

DTYPES: Final = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def load_model(
    path: str | Path, dtype: str = "float32", device: str | torch.device = "cpu"
) -> tuple[Any, Any]:
    """Return (model, tokenizer), the model in evaluation mode on ``device``.

    Attention is ``eager``, the only implementation that returns its weights. The tokenizer pads on
    the left, so that batched generation continues every prompt at its end; without a pad token of
    its own it pads with the end-of-sequence token. Code that comes with a model is never run.

    Args:
        path: A folder in the transformers format, or a model's name on its hub.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        device: As torch names it.

    Raises:
        ValueError: ``dtype`` or ``device`` is not one that exists.
        ModelError: There is no such model, it is damaged, needs code of its own, or has no
            end-of-sequence token.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; allowed are {', '.join(DTYPES)}.")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; allowed are cpu, cuda, cuda:0, ...") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but torch finds no GPU; use cpu.")
    source = str(path)
    if (source.startswith((".", "/", "~")) or source.count("/") > 1) and not Path(source).is_dir():
        raise ModelError(f"model {source}: there is no such folder.")
    try:
        with _no_progress_bars():
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            model: Any = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=DTYPES[dtype],
                attn_implementation="eager",
                trust_remote_code=False,
            )
    except Exception as error:  # transformers raises a dozen types for a damaged folder
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelError(f"model {source} cannot be loaded: {said}") from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"model {source}: its tokenizer has neither a pad nor an end-of-sequence token; "
                "set eos_token in tokenizer_config.json."
            )
        tokenizer.pad_token = tokenizer.eos_token
    return model.train(False).to(place), tokenizer


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing on the terminal, and leave its setting as it was."""
    drawn = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if drawn:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
