"""wdsbench: language model traces in WebDataset shards, streamed at memory speed, and the
detectors trained on them.

This package exports ``TraceLoader``, ``TraceDataset``, records and errors. Importing it imports
neither torch nor the C++ extension; the loaders are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wdsbench.errors import (
    DecodeError,
    DetectorError,
    ModelError,
    PackError,
    QuestionError,
    ScoreError,
    ShardError,
    TraceError,
    WdsbenchError,
)
from wdsbench.records import Batch, Member, Trace

if TYPE_CHECKING:
    from wdsbench.loader import TraceDataset, TraceLoader

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "DecodeError",
    "DetectorError",
    "Member",
    "ModelError",
    "PackError",
    "QuestionError",
    "ScoreError",
    "ShardError",
    "Trace",
    "TraceDataset",
    "TraceError",
    "TraceLoader",
    "WdsbenchError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in ("TraceDataset", "TraceLoader"):
        import wdsbench.loader

        return getattr(wdsbench.loader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
