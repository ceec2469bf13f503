"""What a raw file holds, before it is checked: for those who look at bad traces too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wdsbench.traces.files import kind_of
from wdsbench.traces.read import NAMED_READERS, contents_of, named_traces, raw_dicts
from wdsbench.traces.tensors import is_sequences


def raw_objects(path: Path) -> Iterator[list[Any] | Mapping[str, Any]]:
    """Yield the objects of a file: new lists of raw traces, or preprocessed files as they are.

    The safe readers of module ``read``: nothing of a file is run. The caller's reference to a list
    is the only one, so that memory shrinks as traces are taken out of it.

    Raises:
        TraceError: The file cannot be read, or holds something else.
    """
    read_named = NAMED_READERS.get(kind_of(path) or "")
    if read_named is not None:
        for raw in named_traces(read_named, path):
            yield [raw]
        return
    for content in contents_of(path):
        if isinstance(content, Mapping) and is_sequences(content):
            yield content
        else:
            raws = raw_dicts(content, str(path))
            del content
            yield raws
