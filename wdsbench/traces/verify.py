"""The full check of raw trace files: every bad file and trace with its reason.

It covers the checks of packing (modules ``read`` and ``check``; attention maps by computing their
default edges), which stops at the first bad trace, and that a question's trace numbers are unique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import xxhash

from wdsbench.cores import usable_cores
from wdsbench.errors import TraceError
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Trace
from wdsbench.traces.attention import AttentionRules, MapError, as_maps, reduce_maps
from wdsbench.traces.files import match_patterns
from wdsbench.traces.read import checked_traces

_RULES: Final = AttentionRules(("edges",))


@dataclass
class RawReport:
    """Result of a check: the errors of files and traces, ordered by file, and counts of good and
    bad ones; tokens, distinct questions and remarks are those of the good traces.
    """

    files: int = 0
    bad_files: int = 0
    traces: int = 0
    bad_traces: int = 0
    problems: list[TraceError] = field(default_factory=list)
    tokens: int = 0
    questions: int = 0
    remarks: dict[str, int] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        problems = [vars(problem) for problem in self.problems]
        return {**vars(self), "problems": problems, "sound": self.sound}


def verify_raw(patterns: Sequence[str | Path], *, progress: Progress = no_progress) -> RawReport:
    """Check the raw trace files of ``patterns``; memory is bounded by one file.

    Raises:
        TraceError: A pattern matches nothing.
        ValueError: A pattern is empty.
    """
    files, refused = match_patterns(patterns)
    refusals = {Path(str(error.file)): error for error in refused}
    paths = sorted([*files, *refusals])
    check = _FileCheck()
    for path in progress(paths, len(paths), "verifying"):
        check.add_file(path, refusals.get(path))
    report = check.report
    report.questions = len(check.questions)
    report.remarks = dict(check.remarks)
    return report


class _FileCheck:
    def __init__(self) -> None:
        self.report = RawReport()
        self.questions: set[str] = set()
        self.remarks: Counter[str] = Counter()
        self._numbered: dict[tuple[str, int], str] = {}
        self._contents: dict[tuple[str, int], tuple[str, str]] = {}

    def add_file(self, path: Path, refusal: TraceError | None) -> None:
        """Check one file; ``refusal`` says why a match is not a trace file."""
        self.report.files += 1
        try:
            if refusal is not None:
                raise refusal
            for found in checked_traces(path):
                self._add_trace(found)
        except TraceError as error:  # of the file or a container of traces
            self.report.bad_files += 1
            self._add_problem(error)

    def _add_problem(self, error: TraceError) -> None:
        # A copy: the traceback of the error itself keeps the trace in memory.
        self.report.problems.append(TraceError(**vars(error)))

    def _add_trace(self, trace: Trace | TraceError) -> None:
        if isinstance(trace, Trace):
            detail = _map_problem(trace) or self._duplicate(trace)
            if detail is not None:
                trace = TraceError.at(trace, detail)
        if isinstance(trace, TraceError):
            self.report.bad_traces += 1
            self._add_problem(trace)
            return
        self.report.traces += 1
        self.report.tokens += trace.num_tokens
        self.questions.add(trace.question_id)
        self.remarks.update(trace.remarks)

    def _duplicate(self, trace: Trace) -> str | None:
        place = f"{trace.file}, trace {trace.position}"
        if trace.trace_number is not None:
            first = self._numbered.setdefault((trace.question_id, trace.trace_number), place)
            if first != place:
                return f"has trace number {trace.trace_number}, which {first} already has."
            return None
        # Within a file equal traces may be equal answers; across files they are a copy.
        digest = xxhash.xxh3_64_intdigest(trace.hidden.data)
        file, first = self._contents.setdefault((trace.question_id, digest), (trace.file, place))
        if file != trace.file:
            return (
                f"is the same trace as {first}; if the file is not a copy, give its traces a"
                " trace_number."
            )
        return None


def _map_problem(trace: Trace) -> str | None:
    """Return why packing would refuse the trace's attention maps."""
    if trace.attentions is None:
        return None
    try:
        reduce_maps(
            as_maps(trace.attentions), _RULES, prompt_length=None, threads=min(usable_cores(), 8)
        )
    except MapError as error:
        return f"{error}."
    return None
