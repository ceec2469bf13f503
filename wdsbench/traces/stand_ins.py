"""Sealed replacements for the names in a trace's pickle; ``ALLOWED`` at the end lists them all.

``unpickle`` explains why none of them is a function of NumPy or torch.
"""

from __future__ import annotations

import io
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Never

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import TraceError
from wdsbench.traces.arrays import tensor_to_numpy

# Kind and item size as NumPy writes them into a pickle; no structured, datetime or void types, no
# long double (its width differs between machines).
_DTYPE_NAME: Final = re.compile(r"(?:b1|[iu][1248]|f[248]|c(?:8|16)|[SU]\d{1,9}|O8?)")
# numpy.dtype.__reduce__: (version, byte order, subarray, names, fields, item size, alignment,
# flags[, metadata]).
_DTYPE_STATE_LENGTHS: Final = {3: 8, 4: 9}


def printable(name: str) -> str:
    """Return a name from an untrusted file, shortened, control characters escaped."""
    return name[:80].encode("unicode_escape").decode("ascii")


class _Sealed:
    """Base of all stand-ins, which no pickle can change."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise TraceError("the pickle tries to change an object of the reader; nothing was changed.")

    def __setstate__(self, state: object) -> None:
        self.__setattr__("", state)


class _StandIn(_Sealed):
    """A callable under the name of a global."""

    __slots__ = ("_function",)
    _function: Callable[..., object]

    def __init__(self, function: Callable[..., object]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *args: object) -> object:
        return self._function(*args)


class _Dtype(_Sealed):
    """The result of ``numpy.dtype(...)``: a name and a byte order."""

    __slots__ = ("_name", "_order")
    _name: str
    _order: str

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_order", "=")

    def __setstate__(self, state: object) -> None:
        if (
            not isinstance(state, tuple)
            or len(state) < 5
            or _DTYPE_STATE_LENGTHS.get(state[0]) != len(state)
            or state[1] not in ("<", ">", "|", "=")
            or any(part is not None for part in state[2:5])
        ):
            raise TraceError("an array's dtype is structured or unknown; save plain float arrays.")
        object.__setattr__(self, "_order", state[1])

    def real(self) -> np.dtype[Any]:
        return np.dtype("O" if self._name.startswith("O") else self._order + self._name)


class _Array(np.ndarray[Any, np.dtype[Any]]):
    """The result of ``_reconstruct``; an ordinary array after BUILD."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        """Set NumPy's array state after checking that shape, dtype and data agree."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise TraceError("an array's state is not NumPy's; the file is damaged.")
        _, shape, dtype, is_fortran, data = state
        real = _real_dtype(dtype)
        count = math.prod(_checked_shape(shape))
        if real.hasobject:
            if not isinstance(data, list) or len(data) != count:
                raise TraceError("an object array does not hold its number of elements.")
        elif not isinstance(data, bytes) or len(data) != count * real.itemsize:
            raise TraceError(f"an array of shape {shape} of {real} has a wrong number of bytes.")
        super().__setstate__((1, shape, real, bool(is_fortran), data))  # type: ignore[arg-type]


class _Storage(_Sealed):
    """The result of ``_load_from_bytes``, for ``_rebuild_tensor_v2``: a ``TypedStorage``."""

    __slots__ = ("_storage",)
    _storage: Any

    def __init__(self, storage: Any) -> None:
        object.__setattr__(self, "_storage", storage)


def _real_dtype(dtype: object) -> np.dtype[Any]:
    if not isinstance(dtype, _Dtype):
        raise TraceError("an array's dtype is missing; the file is damaged.")
    real = dtype.real()
    if real.itemsize == 0:  # NumPy has no such arrays; their bytes would not bound their shape
        raise TraceError("an array's dtype has elements of 0 bytes; the file is damaged.")
    return real


def _checked_shape(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or any(type(size) is not int or size < 0 for size in shape):
        raise TraceError("an array's shape is not a tuple of sizes; the file is damaged.")
    return shape


def _numpy_dtype(name: object, *_align_and_copy: object) -> _Dtype:
    if not isinstance(name, str) or _DTYPE_NAME.fullmatch(name) is None:
        found = printable(str(name))
        raise TraceError(f"an array's dtype {found!r} is not a plain number, bool or text type.")
    return _Dtype(name)


def _numpy_reconstruct(subtype: object, *_shape_and_type: object) -> _Array:
    """Replace ``numpy.core.multiarray._reconstruct``: an empty array that BUILD fills."""
    if subtype is not _NDARRAY:
        raise TraceError("the pickle holds a subclass of numpy.ndarray; save plain arrays.")
    return _Array((0,), dtype=np.int8)


def _numpy_scalar(dtype: object, data: object = b"") -> object:
    if isinstance(dtype, _Dtype) and dtype.real().itemsize == 0:  # an empty text
        return dtype.real().type()
    real = _real_dtype(dtype)
    if real.hasobject or not isinstance(data, bytes) or len(data) != real.itemsize:
        raise TraceError("a NumPy scalar has a wrong number of bytes; the file is damaged.")
    return np.frombuffer(data, dtype=real)[0]


def _numpy_frombuffer(
    data: object, dtype: object, shape: object, order: object, axis_order: object = None
) -> NDArray[Any]:
    real = _real_dtype(dtype)
    checked = _checked_shape(shape)
    if real.hasobject or not isinstance(data, bytes | bytearray):
        raise TraceError("an array's bytes are missing; the file is damaged.")
    if len(data) != math.prod(checked) * real.itemsize:
        raise TraceError(f"an array of shape {shape} of {real} has a wrong number of bytes.")
    flat = np.frombuffer(data, dtype=real) if data else np.empty(0, dtype=real)
    if order == "K" and axis_order is not None:
        return flat.reshape(checked).transpose(_checked_shape(axis_order))
    if order not in ("C", "F", "A"):
        raise TraceError("an array's memory order is unknown; the file is damaged.")
    return flat.reshape(checked, order=order)  # type: ignore[arg-type, call-overload, no-any-return, unused-ignore]


def _torch_load_from_bytes(data: object) -> _Storage:
    """Replace ``torch.storage._load_from_bytes``, itself an unrestricted ``torch.load``."""
    import torch

    if not isinstance(data, bytes):
        raise TraceError("a torch storage has no bytes; the file is damaged.")
    storage = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(storage, torch.storage.TypedStorage):
        raise TraceError("a torch storage's bytes hold something else; the file is damaged.")
    return _Storage(storage)


def _torch_rebuild_tensor(
    storage: object,
    offset: object,
    size: object,
    stride: object,
    _requires_grad: object = False,
    _hooks: object = None,
    metadata: object = None,
) -> NDArray[Any]:
    import torch

    if not isinstance(storage, _Storage) or type(offset) is not int or offset < 0:
        raise TraceError("a torch tensor has no storage; the file is damaged.")
    if metadata:  # conjugate or negative bit: the stored numbers are not the values
        raise TraceError("a torch tensor is lazily negated; call .resolve_neg() before saving.")
    shape, steps = _checked_shape(size), _checked_shape(stride)
    if len(shape) != len(steps):
        raise TraceError(
            f"a torch tensor of shape {shape} has strides {steps}; the file is damaged."
        )
    typed = storage._storage
    untyped = typed._untyped_storage
    stored = untyped.nbytes() // typed.dtype.itemsize
    # The last element must be in the storage, and strides of 0 must not expand a small storage.
    count = math.prod(shape)
    last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    if count > stored or (count and last >= stored):
        raise TraceError(
            f"a torch tensor of shape {shape} does not fit in its storage of {stored} elements; "
            "call .contiguous() before saving."
        )
    if count == 0:
        return tensor_to_numpy(torch.empty(shape, dtype=typed.dtype))
    return tensor_to_numpy(torch.empty(0, dtype=typed.dtype).set_(untyped, offset, shape, steps))


def _encode(text: object, encoding: object = None) -> bytes:
    """Replace ``_codecs.encode``, with which protocols 0 to 2 write bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise TraceError("bytes in the pickle are not encoded as pickle does; the file is damaged.")
    return text.encode("latin1")


def _bytes(*args: object) -> bytes:
    """Replace ``bytes``, which protocols 0 to 2 call for the empty value only."""
    if args:
        raise TraceError("bytes in the pickle are not written as pickle does; the file is damaged.")
    return b""


def _bytearray(data: object = b"", encoding: object = "latin1") -> bytearray:
    """Replace ``bytearray``; a bare size, which would allocate memory, is refused."""
    return bytearray(_encode(data, encoding) if isinstance(data, str) else _of_type(data, bytes))


def _complex(real: object, imaginary: object = 0.0) -> complex:
    return complex(_of_type(real, float), _of_type(imaginary, float))


def _container(kind: Callable[[Any], object]) -> _StandIn:
    def build(items: object = ()) -> object:
        return kind(_of_type(items, list | tuple))

    return _StandIn(build)


def _never_called(*_: object) -> Never:
    """Replace ``numpy.ndarray`` and factories of a ``defaultdict``, which pickles only name."""
    raise TraceError("the pickle calls a type as pickle does not; the file is damaged.")


def _torch_device(kind: object, index: object = None) -> str:
    return f"{_of_type(kind, str)}" + ("" if index is None else f":{_of_type(index, int)}")


def _of_type(value: object, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TraceError("a plain value is not written as pickle does; the file is damaged.")
    return value


_NDARRAY: Final = _StandIn(_never_called)


def _table() -> Mapping[tuple[str, str], _StandIn | str]:
    """Return (module, name) -> stand-in for all allowed names; torch dtypes become their names."""
    pairs: dict[tuple[str, str], _StandIn | str] = {
        ("numpy", "ndarray"): _NDARRAY,
        ("numpy", "dtype"): _StandIn(_numpy_dtype),
        ("_codecs", "encode"): _StandIn(_encode),
        ("collections", "OrderedDict"): _container(OrderedDict),
        ("collections", "defaultdict"): _StandIn(lambda _factory=None: {}),
        ("torch", "Size"): _container(tuple),
        ("torch", "device"): _StandIn(_torch_device),
        ("torch._utils", "_rebuild_tensor_v2"): _StandIn(_torch_rebuild_tensor),
        ("torch._utils", "_rebuild_parameter"): _StandIn(lambda data, *_grad_and_hooks: data),
        ("torch.storage", "_load_from_bytes"): _StandIn(_torch_load_from_bytes),
    }
    for core in ("numpy.core", "numpy._core"):  # NumPy 1, NumPy 2
        pairs[f"{core}.multiarray", "_reconstruct"] = _StandIn(_numpy_reconstruct)
        pairs[f"{core}.multiarray", "scalar"] = _StandIn(_numpy_scalar)
        pairs[f"{core}.numeric", "_frombuffer"] = _StandIn(_numpy_frombuffer)
    for builtins in ("__builtin__", "builtins"):  # protocols 0 to 2 use Python 2's name
        pairs[builtins, "bytes"] = _StandIn(_bytes)
        pairs[builtins, "bytearray"] = _StandIn(_bytearray)
        pairs[builtins, "complex"] = _StandIn(_complex)
        pairs[builtins, "set"] = _container(set)
        pairs[builtins, "frozenset"] = _container(frozenset)
        for plain in ("dict", "float", "int", "list", "long", "str", "unicode"):
            pairs[builtins, plain] = _StandIn(_never_called)
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        pairs["torch", dtype] = f"torch.{dtype}"
    return MappingProxyType(pairs)


ALLOWED: Final = _table()

#: The same for ``torch.serialization.add_safe_globals``, without torch's own names: (stand-in,
#: name in the pickle). The last two are types that BUILD may fill; no pickle can name them, since
#: a name ends at its newline.
SAFE_VALUES: Final = [
    *(
        (value, f"{module}.{name}")
        for (module, name), value in ALLOWED.items()
        if not module.startswith("torch")
    ),
    (_Dtype, "\n"),
    (_Array, "\n\n"),
]
