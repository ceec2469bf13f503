"""Packs raw traces and scores into a data set, relabels it, and unpacks it.

The same input and options give the same bytes, for any number of workers and after any
interruption; nothing is skipped unless the caller asks for it, and then it is counted. Every file
is read once and memory is bounded by one file a worker. Nothing here imports torch, and names are
imported on first use, so that worker processes load neither the writer nor the index.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wdsbench.pack.options import PackOptions

if TYPE_CHECKING:
    from wdsbench.pack.incremental import IncrementalPacker
    from wdsbench.pack.pack_files import pack
    from wdsbench.pack.run import PackReport

__all__ = ["IncrementalPacker", "PackOptions", "PackReport", "pack"]


def __getattr__(name: str) -> Any:
    module = {"IncrementalPacker": "incremental", "PackReport": "run", "pack": "pack_files"}
    if name in module:
        return getattr(importlib.import_module(f"wdsbench.pack.{module[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
