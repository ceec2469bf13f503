"""Values of a raw trace as NumPy arrays, texts and ids, without importing torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import TraceError, first_line

# float16 without its sign bit: all exponent bits set is infinity, anything above is NaN.
_HALF_MAGNITUDE = np.uint16(0x7FFF)
_HALF_INFINITY = 0x7C00
# The block and its temporary stay in a core's L2 cache.
_BLOCK_ELEMENTS = 64 * 1024


def is_tensor(value: object) -> bool:
    """Return whether ``value`` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_to_numpy(tensor: Any) -> NDArray[Any]:
    """Return a torch tensor's values on the CPU; bfloat16, unknown to NumPy, as float32.

    The array shares the tensor's memory where it can. Raises ValueError for sparse and meta tensors
    and dtypes that NumPy lacks (float8, quantised).
    """
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    try:
        values: NDArray[Any] = tensor.numpy()
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"a torch tensor ({tensor.layout}, {tensor.dtype}) has no NumPy form; save it dense as "
            "float16 or float32"
        ) from error
    return values


def as_array(value: object) -> NDArray[Any]:
    """Return an array, a tensor or (nested) lists of numbers as an array, sharing memory where it
    can.

    Raises:
        ValueError: Lists are ragged, or a tensor has no NumPy form.
    """
    if is_tensor(value):
        return tensor_to_numpy(value)
    if isinstance(value, list | tuple) and any(is_tensor(part) for part in value):
        return np.stack([as_array(part) for part in value])
    return np.asarray(value)


def has_nan(values: NDArray[Any]) -> bool:
    """Return whether a C-contiguous float array in native byte order holds a NaN."""
    flat = values.reshape(-1)
    for first in range(0, flat.size, _BLOCK_ELEMENTS):
        block = flat[first : first + _BLOCK_ELEMENTS]
        if block.dtype == np.float16:  # NumPy's isnan goes through a scalar loop for halves
            if int((block.view(np.uint16) & _HALF_MAGNITUDE).max()) > _HALF_INFINITY:
                return True
        elif np.isnan(block).any():
            return True
    return False


def shown(value: object) -> str:
    """Return ``value`` for an error: arrays and tensors by shape, huge integers by size."""
    if isinstance(value, np.ndarray) or is_tensor(value):
        return f"an array of shape {tuple(value.shape)}"  # type: ignore[attr-defined]
    if isinstance(value, int) and value.bit_length() > 64:  # Python writes out 4,300 digits at most
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def damaged_file(kind: str, error: Exception, file: str | None) -> TraceError:
    """Return the error about a file that its library cannot read."""
    found = f"not a readable {kind} ({type(error).__name__}: {first_line(error)})"
    remedy = "the file is cut short or damaged, write or copy it again."
    return TraceError(f"{found}; {remedy}", file=file)


def storable(text: str) -> str:
    """Return ``text`` for UTF-8: lone surrogates, which tokenizers may leave, become ``?``."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def question_id_text(value: object) -> str:
    """Return a question id as ``str``, integers as decimal digits; raise ValueError for others."""
    if isinstance(value, str):
        if not value:
            raise ValueError("question_id is empty; give every question an id.")
        if storable(value) != value:
            raise ValueError("question_id is not valid Unicode (a lone surrogate); rename it.")
        return str(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    raise ValueError(f"question_id is a {type(value).__name__}; expected text or an integer.")


def question_of(raw: object) -> str | None:
    """Return the question id of an unchecked raw trace, or None."""
    try:
        return question_id_text(scalar(raw["question_id"])) if isinstance(raw, Mapping) else None
    except (KeyError, ValueError):
        return None


def origin_of(value: object) -> tuple[tuple[str, int] | None, tuple[str, ...]]:
    """Return the raw file and place from which a trace was packed, or None, and its remarks."""
    if not isinstance(value, Mapping):
        return None, ()
    file, position, remarks = (value.get(key) for key in ("file", "position", "remarks"))
    if not isinstance(file, str) or not isinstance(position, int) or position < 0:
        return None, ()
    if not isinstance(remarks, list | tuple) or not all(isinstance(text, str) for text in remarks):
        return None, ()
    return (storable(file), position), tuple(map(storable, remarks))


def scalar(value: object) -> object:
    """Return the element of an array or tensor of one element, any other value unchanged."""
    if value is None or isinstance(value, str | int | float):
        return value
    if not (hasattr(value, "ndim") and hasattr(value, "item") and hasattr(value, "size")):
        return value
    array = as_array(value)
    return array.reshape(-1)[0] if array.size == 1 and array.dtype != object else value


@contextmanager
def located(file: str, position: int | None = None) -> Iterator[None]:
    """Raise a ValueError of the block as a TraceError with this place."""
    try:
        yield
    except ValueError as error:
        raise TraceError(str(error), file=file, position=position) from error
