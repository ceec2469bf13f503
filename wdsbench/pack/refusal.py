"""The error of a trace that cannot be packed."""

from __future__ import annotations

from wdsbench.errors import TraceError
from wdsbench.records import Trace


def refusal(trace: Trace, detail: str) -> TraceError:
    """Return the error that says where the trace stands and what is wrong with it."""
    return TraceError(
        detail, file=trace.file, position=trace.position, question_id=trace.question_id
    )
