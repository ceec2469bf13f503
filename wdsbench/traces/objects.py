"""What a raw file holds, before it is checked: for those who look at bad traces too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wdsbench.traces import read
from wdsbench.traces.files import kind_of
from wdsbench.traces.tensors import is_sequences


def raw_objects(path: Path) -> Iterator[list[Any] | Mapping[str, Any]]:
    """Yield the objects of a file: new lists of raw traces, or preprocessed files as they are.

    The safe readers of module ``read``: nothing of a file is run. The caller's reference to a list
    is the only one, so that memory shrinks as traces are taken out of it.

    Raises:
        TraceError: The file cannot be read, or holds something else.
    """
    read_named = read._NAMED.get(kind_of(path) or "")
    if read_named is not None:
        for raw in read._read_named(read_named, path):
            yield [raw]
        return
    for content in read._contents(path):
        if isinstance(content, Mapping) and is_sequences(content):
            yield content
        else:
            raws = read._raw_dicts(content, str(path))
            del content
            yield raws
