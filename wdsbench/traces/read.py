"""Reading of raw trace files into checked traces, with one file in memory at a time."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from isal import igzip

from wdsbench.errors import TraceError
from wdsbench.records import Trace
from wdsbench.traces.arrays import is_tensor, shown
from wdsbench.traces.check import check_trace
from wdsbench.traces.files import kind_of, open_raw
from wdsbench.traces.hdf5 import read_hdf5
from wdsbench.traces.npz import read_npz
from wdsbench.traces.safetensors_file import read_safetensors
from wdsbench.traces.tensors import load_tensors, sequence_traces
from wdsbench.traces.unpickle import load_pickle

# torch.save writes a zip archive (PKZIP APPNOTE 4.3.7), whatever the file's name; before torch 1.6
# (or with _use_new_zipfile_serialization=False) several pickles, the first of which is this number
# (torch.serialization.MAGIC_NUMBER) in protocol 2.
_TORCH_MAGICS: Final = (b"PK\x03\x04", pickle.dumps(0x1950A86A20F9469CFC6C, 2))

NAMED_READERS: Final = {"safetensors": read_safetensors, "npz": read_npz, "hdf5": read_hdf5}


def read_traces(path: Path) -> Iterator[Trace]:
    """Yield the checked traces of one raw file, in its order.

    A pickle holds a list of raw dicts, one raw dict, or ``{"traces": list}``; a file may hold
    several. A ``.pt`` holds the same, or preprocessed ``sequences`` or ``graphs``. Memory is
    bounded by the file's content and shrinks as traces are consumed; of files of named arrays
    (module ``named``) one trace is in memory.

    Raises:
        TraceError: The file cannot be read, or a trace fails its check.
    """
    for found in checked_traces(path):
        if isinstance(found, TraceError):
            raise found
        yield found


def checked_traces(path: Path) -> Iterator[Trace | TraceError]:
    """Yield each trace of a file, or its error; raise TraceError if the file cannot be read."""
    file = str(path)
    position = 0
    for content in raw_objects(path):
        if isinstance(content, Mapping):
            for found in sequence_traces(content, file):
                yield found
                position += 1
            continue
        for index in range(len(content)):
            raw, content[index] = content[index], None
            try:
                found = check_trace(raw, file, position)
            except TraceError as error:
                found = error
            yield found
            position += 1
    if position == 0:
        raise TraceError("the file holds no traces; leave it out.", file=file)


def raw_objects(path: Path) -> Iterator[list[Any] | Mapping[str, Any]]:
    """Yield the unchecked objects of a file: new lists of raw traces, or preprocessed files.

    No code in a file is run. The caller has the only reference to a list, so memory shrinks as
    traces are removed from it. Raises TraceError if the file cannot be read, or holds something
    else.
    """
    read_named = NAMED_READERS.get(kind_of(path) or "")
    if read_named is not None:
        open_raw(path).close()  # raises the same errors as for other kinds of files
        try:
            for raw in read_named(path):
                yield [raw]
        except OSError as error:
            detail = f"cannot be read: {error.strerror or error}."
            raise TraceError(detail, file=str(path)) from error
        return
    for content in _pickled_objects(path):
        if isinstance(content, Mapping) and ("sequences" in content or "graphs" in content):
            yield content
        else:
            raws = _raw_dicts(content, str(path))
            del content
            yield raws


def _pickled_objects(path: Path) -> Iterator[object]:
    """Yield each object of a file of ``pickle`` or ``torch``, without keeping a reference."""
    with open_raw(path) as stream:
        start = _peek(stream, max(map(len, _TORCH_MAGICS)), str(path))
        by_torch = start.startswith(_TORCH_MAGICS)
        if kind_of(path) != "tensors" and not by_torch:
            while start:
                yield load_pickle(stream, file=str(path))
                start = _peek(stream, 1, str(path))
            return
        if isinstance(cast(object, stream), igzip.IGzipFile):
            raise TraceError(
                "a gzipped torch file, which is not supported; inflate it with gunzip."
                if by_torch
                else "a gzipped file that torch.save did not write; if it holds a pickle, give it "
                "a name ending in .pkl.gz.",
                file=str(path),
            )
    yield load_tensors(path)


def _peek(stream: Any, size: int, file: str) -> bytes:
    """Return the next bytes without consuming them, since a gzip stream cannot seek cheaply."""
    try:
        return bytes(stream.peek(size)[:size])
    except (OSError, EOFError) as error:
        raise TraceError(
            f"cannot be inflated ({error}); the file is cut short or damaged, write or copy it "
            "again.",
            file=file,
        ) from error


def _raw_dicts(content: object, file: str) -> list[Any]:
    """Return a new list of the raw dicts in ``content``."""
    if isinstance(content, Mapping):
        if isinstance(content.get("traces"), list | tuple):
            return list(content["traces"])
        if "hidden_states" in content or "question_id" in content:
            return [content]
        keys = ", ".join(sorted(map(str, content))[:10]) or "none"
        found = f"a dict that is not a trace (keys: {keys})"
    elif isinstance(content, list | tuple):
        return list(content)
    elif isinstance(content, np.ndarray) and content.dtype == object and content.ndim == 1:
        return list(content)  # numpy.array(traces)
    elif isinstance(content, np.ndarray) or is_tensor(content):
        found = shown(content)
    else:
        found = f"a {type(content).__name__}"
    raise TraceError(
        f"the file holds {found}; expected a list of trace dicts, one trace dict, "
        "or {'traces': list}.",
        file=file,
    )
