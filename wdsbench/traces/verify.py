"""The full check of raw trace files: every bad file and trace with its reason.

It covers the checks of packing (modules ``read`` and ``check``; attention maps by computing their
default edges), which stops at the first bad trace, and that a question's trace numbers are unique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import xxhash

from wdsbench.cores import usable_cores
from wdsbench.errors import TraceError
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Trace
from wdsbench.traces.attention import AttentionRules, MapError, as_maps, reduce_maps
from wdsbench.traces.check import check_trace
from wdsbench.traces.files import match_patterns
from wdsbench.traces.read import raw_objects
from wdsbench.traces.tensors import sequence_traces

_RULES: Final = AttentionRules(("edges",))


@dataclass
class RawReport:
    """Result of a check; tokens, distinct questions and remarks are those of the good traces.

    Attributes:
        files: Number of files, good and bad.
        bad_files: Files that could not be read completely, or are not trace files.
        problems: Errors of files and traces, ordered by file.
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
        """True if there is no problem."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return plain values by name."""
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
    """Checks one file after the other and counts the results."""

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
            position = 0
            for content in raw_objects(path):
                for found in _checked(content, str(path), position):
                    position += 1
                    self._add_trace(found)
            if position == 0:
                raise TraceError("the file holds no traces; leave it out.", file=str(path))
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
        """Return why the trace duplicates an earlier one, or None."""
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


def _checked(
    content: list[Any] | Mapping[str, Any], file: str, position: int
) -> Iterator[Trace | TraceError]:
    """Yield each trace in an object of a file, or its error."""
    if isinstance(content, Mapping):
        yield from checked_sequences(content, file)
        return
    for place in range(len(content)):
        raw, content[place] = content[place], None
        try:
            yield check_trace(raw, file, position + place)
        except TraceError as error:
            yield error


def checked_sequences(content: Mapping[str, Any], file: str) -> Iterator[Trace | TraceError]:
    """Yield each trace of a preprocessed file, or its error."""
    first = 0
    while True:
        rest = {
            name: content[name][first:] if first else content[name]
            for name in ("sequences", "question_ids", "labels", "graphs")
            if content.get(name) is not None
        }
        try:
            for trace in sequence_traces(rest, file):
                yield replace(trace, position=first + trace.position)
            return
        except TraceError as error:
            if error.position is None:  # of the file
                raise
            place = first + error.position
            yield TraceError(error.detail, file=file, position=place, question_id=error.question_id)
            first = place + 1
