"""HDF5 files of traces, by h5py (``pip install 'wdsbench[hdf5]'``), one trace in memory at a time.

The root is one trace, or each group in it is one, ordered by number if all names are decimal, else
by name. Datasets and attributes are named by the raw format's keys, and groups hold the layers
``0``, ``1``, ... or ``reduced_attention``. Links to other files are refused.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.errors import TraceError
from wdsbench.files import temp_path
from wdsbench.traces.arrays import damaged_file
from wdsbench.traces.named import (
    KEYS,
    LAYERED,
    REDUCED,
    NamedTrace,
    Reader,
    as_value,
    named_values,
    parse_json,
    raw_traces,
)


def read_hdf5(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the raw dict of each trace, one in memory at a time.

    Raises:
        TraceError: h5py is not installed, the file is cut short or damaged, or holds no trace.
    """
    h5py = _h5py(str(path))
    try:
        with h5py.File(path, "r") as file:
            try:
                traces = _traces(h5py, file)
            except ValueError as error:
                raise TraceError(f"{error}.", file=str(path)) from error
            yield from raw_traces(traces, str(path))
    except (OSError, RuntimeError, KeyError) as error:
        raise damaged_file("HDF5 file", error, str(path)) from error


def write_hdf5(path: Path, traces: Sequence[Mapping[str, Any]]) -> None:
    """Write each raw trace to a group; ``path`` changes only when the file is complete."""
    h5py = _h5py(str(path))
    temporary = temp_path(path)
    try:
        with h5py.File(temporary, "w") as file:
            for number, raw in enumerate(traces):
                group = file.create_group(str(number))
                arrays, meta = named_values(raw, None)
                for name, array in arrays.items():
                    group.create_dataset(name.replace(".", "/"), data=array, track_times=False)
                for name, value in meta.items():
                    if isinstance(value, dict):
                        value = json.dumps(value, sort_keys=True)
                    if value is not None:
                        group.create_dataset(name.replace(".", "/"), data=value, track_times=False)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _h5py(file: str) -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise TraceError(
            "HDF5 files need h5py, which is not installed; pip install 'wdsbench[hdf5]'.", file=file
        ) from error


def _traces(h5py: Any, file: Any) -> list[NamedTrace]:
    groups = [
        key for key in file if key not in KEYS and isinstance(_linked(h5py, file, key), h5py.Group)
    ]
    root = _named(h5py, file)
    if root and groups:
        raise ValueError(
            f"the root holds {next(iter(root))} and groups such as {groups[0]!r}; expected one"
            " trace in the root, or one in each group"
        )
    if root:
        return [root]
    numbers = all(key.isdecimal() for key in groups)
    groups.sort(key=(lambda key: (int(key), key)) if numbers else (lambda key: (0, key)))
    if not groups:
        raise ValueError(
            f"the file holds no trace (names: {', '.join(list(file)[:10]) or 'none'}); expected"
            " groups that hold hidden_states, tokens, question_id"
        )
    return [_named(h5py, _linked(h5py, file, key)) for key in groups]


def _named(h5py: Any, group: Any) -> NamedTrace:
    """Return the readers of one group's datasets and attributes."""
    values: NamedTrace = {key: _attribute_reader(group, key) for key in group.attrs if key in KEYS}
    for key in group:
        if key not in KEYS:
            continue
        item = _linked(h5py, group, key)
        if isinstance(item, h5py.Dataset):
            values[key] = _dataset_reader(h5py, item, key)
        elif isinstance(item, h5py.Group) and key in (*LAYERED, REDUCED):
            for inner in item:
                part = _linked(h5py, item, inner)
                if isinstance(part, h5py.Dataset):
                    name = f"{key}.{inner}"
                    values[name] = _dataset_reader(h5py, part, name)
            for inner in item.attrs:
                values[f"{key}.{inner}"] = _attribute_reader(item, inner)
    return values


def _linked(h5py: Any, group: Any, key: str) -> Any:
    """Return a member of a group; raise ValueError if it is a link to another file."""
    if isinstance(group.get(key, getlink=True), h5py.ExternalLink):
        raise ValueError(f"{group.name}/{key} is a link to another file; copy the data in")
    return group[key]


def _dataset_reader(h5py: Any, dataset: Any, name: str) -> Reader:
    def read() -> Any:
        if dataset.external or dataset.is_virtual:
            raise ValueError(f"{name} is stored in another file; copy the data in")
        if h5py.check_string_dtype(dataset.dtype) is not None:
            text = dataset.asstr()[()]
            value = text.tolist() if isinstance(text, np.ndarray) else str(text)
            return parse_json(value, name) if name == "packed_from" else value
        if dataset.dtype.kind not in "biufUS":
            raise ValueError(f"{name} has dtype {dataset.dtype}; expected numbers or texts")
        return as_value(np.asarray(dataset[()]))

    return read


def _attribute_reader(group: Any, key: str) -> Reader:
    def read() -> Any:
        value = group.attrs[key]
        if isinstance(value, np.ndarray) and value.dtype.kind == "O":
            return [str(part) for part in value.reshape(-1)]
        return as_value(value) if isinstance(value, np.ndarray) else value

    return read
