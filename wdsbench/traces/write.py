"""Writing of raw trace files of plain NumPy arrays; equal traces give equal bytes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
from isal import igzip

from wdsbench.files import atomic_file
from wdsbench.traces.arrays import is_tensor, tensor_to_numpy
from wdsbench.traces.files import kind_of
from wdsbench.traces.hdf5 import write_hdf5
from wdsbench.traces.npz import write_npz
from wdsbench.traces.safetensors_file import write_safetensors

# Every Python since 3.4 reads protocol 4; 5 saves no copy when the bytes are compressed.
_PROTOCOL: Final = 4
# isal has levels 0 to 3. float16 states hardly compress; level 1 costs about as little as 0.
_GZIP_LEVEL: Final = 1
_BUFFER_BYTES: Final = 1 << 20


def write_traces(path: Path, traces: Sequence[Mapping[str, Any]]) -> None:
    """Write raw trace dicts (module ``check``) to one file; ``path`` changes when all is on disk.

    The suffix decides the format: ``.pkl.gz``, ``.pkl``, or named arrays (module ``named``) as
    ``.npz``, ``.safetensors`` or ``.h5``. Torch tensors are written as NumPy arrays, so readers
    need no torch. The bytes depend on the values only (except for HDF5, whose library decides the
    file's layout).

    Raises:
        ValueError: The suffix is unknown.
    """
    writer = _WRITERS.get(kind_of(path))
    if writer is None:
        raise ValueError(
            f"trace file {path.name!r}: the name ends in none of .pkl.gz, .pkl, .npz, .safetensors,"
            " .h5, .hdf5; rename it"
        )
    writer(path, traces)


def _write_pickle(path: Path, traces: Sequence[Mapping[str, Any]]) -> None:
    plain = [_plain(trace) for trace in traces]
    with atomic_file(path) as raw:
        if not path.name.lower().endswith(".gz"):
            _dump(plain, raw)
            return
        zipped = igzip.IGzipFile(  # type: ignore[no-untyped-call]
            filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=raw, mtime=0
        )
        with zipped, io.BufferedWriter(cast(io.RawIOBase, zipped), _BUFFER_BYTES) as stream:
            _dump(plain, stream)


def _dump(plain: list[Any], stream: BinaryIO | io.BufferedWriter) -> None:
    pickler = pickle.Pickler(stream, protocol=_PROTOCOL)
    # No memo, so that shared objects and equal ones give the same bytes. Raw traces have no cycles.
    pickler.fast = True
    pickler.dump(plain)


def _plain(value: Any) -> Any:
    """Return ``value`` with tensors as arrays, arrays in C order."""
    if is_tensor(value):
        value = tensor_to_numpy(value)
    if isinstance(value, np.ndarray):
        return np.asarray(value, order="C")
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value] if _may_hold_arrays(value) else list(value)
    return value


def _may_hold_arrays(values: Sequence[Any]) -> bool:
    return bool(values) and not isinstance(values[0], int | float | str)


_WRITERS: Final[dict[str | None, Callable[[Path, Sequence[Mapping[str, Any]]], None]]] = {
    "pickle": _write_pickle,
    "npz": write_npz,
    "safetensors": write_safetensors,
    "hdf5": write_hdf5,
}
