"""Load a causal language model and its tokenizer the way extraction needs them."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import xxhash
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from wdsbench.errors import ModelError
from wdsbench.llm.options import ModelOptions

#: What transformers says of a model of another kind, such as an encoder with a decoder.
_OTHER_KIND: Final = re.compile(r"Unrecognized configuration class <class '(?:\w+\.)*(\w+)'>")
_SAMPLED_VALUES: Final = 4096
_CAST_LOGGER: Final = "bitsandbytes.autograd._functions"
# What a configuration says of where and by what it was loaded, not of the model.
_NOT_THE_MODEL: Final = ("_name_or_path", "transformers_version")


def load_model(path: str | Path, options: ModelOptions | None = None) -> tuple[Any, Any]:
    """Return (model, tokenizer), the model in evaluation mode on its device.

    Attention is ``eager``, the only implementation that returns its weights. The tokenizer pads on
    the left, so that batched generation continues every prompt at its end; without a pad token of
    its own it pads with the end-of-sequence token.

    Args:
        path: A folder in the transformers format, or a model's name on its hub.
        options: See :class:`ModelOptions`. ``dtype`` is the dtype of the computation if the model
            is quantised (8bit always computes in float16). Remote code runs with the rights of this
            process, and only with ``trust_remote_code``.

    Raises:
        ValueError: The device does not exist.
        ModelError: There is no such model, it is damaged, lacks weights, needs code of its own, has
            no end-of-sequence token, or a required package is not installed.
    """
    options = options or ModelOptions()
    place = checked_device(options.device or "cpu")
    dtype = getattr(torch, options.dtype)
    source = str(path)
    require_source(source)
    extra: dict[str, Any] = {} if options.revision is None else {"revision": options.revision}
    if options.device_map is not None:
        _require_packages(f"device_map {options.device_map}", "accelerate")
        extra["device_map"] = options.device_map
    if options.load_in is not None:
        _require_packages(f"load_in {options.load_in}", "bitsandbytes", "accelerate")
        extra["quantization_config"] = _quantisation(options.load_in, dtype)
        extra.setdefault("device_map", {"": str(place)})
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(
                source,
                trust_remote_code=options.trust_remote_code,
                revision=options.revision or "main",
            )
            found: Any = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype,
                attn_implementation="eager",
                trust_remote_code=options.trust_remote_code,
                output_loading_info=True,
                **extra,
            )
            model, loaded = found
    except Exception as error:  # transformers raises a dozen types for a damaged folder
        said = " ".join(str(error).split())[:300] or type(error).__name__
        if "trust_remote_code" in str(error):
            said = "it needs code of its own; read that code, then allow it with trust_remote_code"
        other = _OTHER_KIND.search(str(error))
        if other is not None:  # and then a list of all kinds that there are
            said = f"it is no causal language model (configuration {other[1]})"
        raise ModelError(f"model {source} cannot be loaded: {said}") from error
    check_weights(source, loaded, "for a causal language model")
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"model {source}: its tokenizer has neither a pad nor an end-of-sequence token; "
                "set eos_token in tokenizer_config.json."
            )
        tokenizer.pad_token = tokenizer.eos_token
    model.train(False)
    # What accelerate has placed stays there; quantised weights cannot be moved.
    return (model if "device_map" in extra else model.to(place)), tokenizer


def require_source(source: str) -> None:
    """Raise ModelError where what can only be a folder, and no name on the hub, is none."""
    if (source.startswith((".", "/", "~")) or source.count("/") > 1) and not Path(source).is_dir():
        raise ModelError(f"model {source}: there is no such folder.")


def check_weights(source: str, loaded: Mapping[str, Any], purpose: str) -> None:
    """Raise ModelError where transformers filled in random numbers for weights.

    It does so, with a warning, for a checkpoint of another kind, such as one without the head that
    is asked for.

    Args:
        source: Name of the model, for the error.
        loaded: Loading info of ``from_pretrained(output_loading_info=True)``.
        purpose: Purpose of the weights, for the error.
    """
    names = map(str, (*loaded["missing_keys"], *loaded["mismatched_keys"]))
    # Quantised models have others beside them (scales, zero points), which loading makes.
    lacking = sorted(name for name in names if name.endswith((".weight", ".bias")))
    if lacking:
        shown = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if lacking[3:] else "")
        raise ModelError(
            f"model {source} lacks weights {purpose}: {shown}; they would be random. Give a"
            " checkpoint that was trained for it."
        )


def model_fingerprint(model: Any) -> str:
    """Return 16 hex digits that differ where models do: of configuration, dtype and some weights.

    Reads the first values of the first and of the last parameter, so it costs nothing.
    """
    config = {
        name: value for name, value in model.config.to_dict().items() if name not in _NOT_THE_MODEL
    }
    digest = xxhash.xxh3_64()
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    digest.update(str(model.dtype).encode())
    parameters = list(model.parameters())
    for parameter in (parameters[0], parameters[-1]):
        values = parameter.detach().reshape(-1)[:_SAMPLED_VALUES].float().cpu().contiguous()
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()


def checked_device(device: str | torch.device) -> torch.device:
    """Return the device.

    Raises:
        ValueError: There is none of that name.
    """
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; expected cpu, cuda, cuda:0, ...") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but torch finds no GPU; use cpu.")
    return place


def _require_packages(what: str, *names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"{what} needs {' and '.join(missing)}, not installed here; pip install"
            f" {' '.join(missing)}, or leave the option out."
        )


def _quantisation(load_in: str, dtype: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    if load_in == "8bit":
        # It computes in float16 and says so at every product of every layer.
        logging.getLogger(_CAST_LOGGER).setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)  # type: ignore[no-untyped-call]
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_compute_dtype=dtype
    )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from drawing and reporting on the terminal, and leave its settings as they
    were.
    """
    drawn = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # What its table of missing weights says is said by check_weights, in one line.
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if drawn:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
