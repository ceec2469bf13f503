"""Loading of a causal language model and its tokenizer for extraction."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any, Final

import torch
import xxhash
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from wdsbench.errors import ModelError
from wdsbench.llm.options import ModelOptions

#: Error of transformers for a model of another kind, such as an encoder with a decoder.
_OTHER_KIND: Final = re.compile(r"Unrecognized configuration class <class '(?:\w+\.)*(\w+)'>")
#: Error of transformers for a GGUF file of a model that it cannot build.
_OTHER_GGUF: Final = re.compile(r"GGUF model with architecture (\S+) is not supported")
GGUF_SUFFIX: Final = ".gguf"
_SAMPLED_VALUES: Final = 4096
_CAST_LOGGER: Final = "bitsandbytes.autograd._functions"
# Keys of a configuration that depend on where and by which version it was loaded.
_NOT_THE_MODEL: Final = ("_name_or_path", "transformers_version")


def load_model(path: str | Path, options: ModelOptions | None = None) -> tuple[Any, Any]:
    """Return (model, tokenizer), the model in evaluation mode on its device.

    Attention is ``eager``, the only implementation that returns its weights. The tokenizer pads on
    the left, with the end-of-sequence token if it has no pad token. ``path`` is a folder in the
    transformers format, a name on its hub, or a GGUF file, whose weights become ``dtype``. For a
    quantised model ``dtype`` is that of the computation (8bit: always float16). Remote code runs
    only with ``trust_remote_code``.

    Raises:
        ValueError: The device does not exist.
        ModelError: The model cannot be loaded, or a required package is not installed.
    """
    options = options or ModelOptions()
    place = checked_device(options.device or "cpu")
    dtype = getattr(torch, options.dtype)
    source = str(path)
    folder, file = pretrained_source(source)
    extra: dict[str, Any] = {} if options.revision is None else {"revision": options.revision}
    extra.update(file)
    if options.device_map is not None:
        _require_packages(f"device_map {options.device_map}", "accelerate")
        extra["device_map"] = options.device_map
    if options.load_in is not None:
        _require_packages(f"load_in {options.load_in}", "bitsandbytes", "accelerate")
        extra["quantization_config"] = _quantisation(options.load_in, dtype)
        extra.setdefault("device_map", {"": str(place)})
    with loading(source, reason=causal_reason), _without_bar(file):
        tokenizer = AutoTokenizer.from_pretrained(
            folder,
            trust_remote_code=options.trust_remote_code,
            revision=options.revision or "main",
            **file,
        )
        found: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=options.trust_remote_code,
            output_loading_info=True,
            **extra,
        )
        model, loaded = found
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
    # accelerate has placed the weights; quantised ones cannot be moved.
    return (model if "device_map" in extra else model.to(place)), tokenizer


def padded(tokenizer: Any, sequences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and attention mask, int64 ``[B, T]``, padded on the right, where a causal
    model does not look.
    """
    longest = max(map(len, sequences))
    ids = torch.full((len(sequences), longest), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    return ids, mask


def pretrained_source(source: str) -> tuple[str, dict[str, str]]:
    """Return folder or hub name of a model, and further arguments of ``from_pretrained``.

    Raises:
        ModelError: It is a GGUF file, but a package that reads it is not installed.
    """
    if not source.endswith(GGUF_SUFFIX):
        return source, {}
    _require_packages(f"model {source}", "gguf", "accelerate", extra="gguf")
    path = Path(source).expanduser()
    return str(path.parent), {"gguf_file": path.name}


@contextmanager
def loading(
    source: str, verb: str = "loaded", reason: Callable[[Exception], str] | None = None
) -> Iterator[None]:
    """Raise every error within as ModelError; keep transformers from writing to the terminal."""
    if source.endswith(GGUF_SUFFIX):
        if not Path(source).expanduser().is_file():
            raise ModelError(f"model {source}: there is no such file.")
    elif (source.startswith((".", "/", "~")) or source.count("/") > 1) and not Path(
        source
    ).is_dir():
        raise ModelError(f"model {source}: there is no such folder.")
    try:
        with quiet_transformers():
            yield
    except Exception as error:  # transformers raises a dozen types for a damaged folder
        raise ModelError(
            f"model {source} cannot be {verb}: {(reason or first_words)(error)}"
        ) from error


def causal_reason(error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return "it needs code of its own; read that code, then allow it with trust_remote_code"
    other = _OTHER_KIND.search(str(error))
    if other is not None:  # the message continues with a list of all kinds
        return f"it is not a causal language model (configuration {other[1]})"
    other = _OTHER_GGUF.search(str(error))
    if other is not None:
        return (
            f"transformers reads no GGUF file of the architecture {other[1]}; give the model in the"
            " transformers format"
        )
    return first_words(error)


def first_words(error: BaseException, length: int = 300) -> str:
    """Return the beginning of an error's text in one line, or its type if there is no text."""
    return " ".join(str(error).split())[:length] or type(error).__name__


def check_weights(source: str, loaded: Mapping[str, Any], purpose: str) -> None:
    """Raise ModelError if weights are missing, such as those of a head.

    transformers only warns and fills in random numbers. ``loaded`` is the loading info of
    ``from_pretrained(output_loading_info=True)``.
    """
    names = map(str, (*loaded["missing_keys"], *loaded["mismatched_keys"]))
    # Loading creates the other tensors of quantised models (scales, zero points).
    lacking = sorted(name for name in names if name.endswith((".weight", ".bias")))
    if lacking:
        shown = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if lacking[3:] else "")
        raise ModelError(
            f"model {source} lacks weights {purpose}: {shown}; they would be random. Give a"
            " checkpoint that was trained for it."
        )


def model_fingerprint(model: Any) -> str:
    """Return a digest (16 hex digits) of configuration, dtype, and first and last weights."""
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
    """Return the device; raise ValueError if it does not exist."""
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; expected cpu, cuda, cuda:0, ...") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but torch finds no GPU; use cpu.")
    return place


def _require_packages(what: str, *names: str, extra: str | None = None) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        remedy = " ".join(missing) + ", or leave the option out"
        raise ModelError(
            f"{what} needs {' and '.join(missing)}, not installed; pip install"
            f" {remedy if extra is None else f'wdsbench[{extra}]'}."
        )


def _quantisation(load_in: str, dtype: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    if load_in == "8bit":
        # bitsandbytes warns at every product that it computes in float16.
        logging.getLogger(_CAST_LOGGER).setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)  # type: ignore[no-untyped-call]
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_compute_dtype=dtype
    )


def _without_bar(file: Mapping[str, str]) -> AbstractContextManager[Any]:
    """Keep transformers from drawing its bar of a GGUF file, which has no setting."""
    return redirect_stderr(io.StringIO()) if file else nullcontext()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from writing to the terminal; restore its settings afterwards."""
    drawn = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # check_weights replaces its table of missing weights.
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if drawn:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
