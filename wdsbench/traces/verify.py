"""The full check of raw trace files, which lists every bad file and trace with its reason.

Packing stops at the first bad trace; this check continues. It covers what packing checks (modules
``read`` and ``check``; attention maps by computing their default edges), and that a question's
trace numbers are unique.

A file that cannot be read to its end is one problem, after those of the traces before the damage.
A pickle is one object, so usually none of its traces can be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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


@dataclass(frozen=True)
class RawProblem:
    """A bad file or trace.

    Attributes:
        file: Path of the file.
        position: Place of the trace in it, from 0; None: the file itself.
        question_id: Where it is known.
        detail: Found value, expected values, remedy.
    """

    file: str
    detail: str
    position: int | None = None
    question_id: str | None = None

    @property
    def text(self) -> str:
        """One line: place, then detail."""
        error = TraceError(
            self.detail, file=self.file, position=self.position, question_id=self.question_id
        )
        return str(error)


@dataclass
class RawReport:
    """Result of a check.

    Attributes:
        files: Files looked at.
        bad_files: Files that could not be read to their end, or are no trace files.
        traces: Good traces.
        bad_traces: Traces with a problem.
        tokens: Of the good ones.
        questions: Different questions of the good ones.
        problems: All of them, files in order.
        remarks: Number of traces for each change that reading makes.
    """

    files: int = 0
    bad_files: int = 0
    traces: int = 0
    bad_traces: int = 0
    tokens: int = 0
    questions: int = 0
    problems: list[RawProblem] = field(default_factory=list)
    remarks: dict[str, int] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return plain values by name."""
        return {**asdict(self), "sound": self.sound}


def verify_raw(patterns: Sequence[str | Path], *, progress: Progress = no_progress) -> RawReport:
    """Check raw trace files and return every problem; memory is bounded by one file.

    Args:
        patterns: Files, folders or globs of raw trace files.
        progress: Draws over files.

    Raises:
        TraceError: A pattern matches nothing.
        ValueError: A pattern is empty.
    """
    files, refused = match_patterns(patterns)
    strangers = {Path(str(error.file)): error for error in refused}
    paths = sorted([*files, *strangers])
    run = _Run()
    for path in progress(paths, len(paths), "verifying"):
        if path in strangers:
            run.refuse_file(strangers[path])
        else:
            run.add_file(path)
    report = run.report
    report.questions = len(run.questions)
    report.remarks = dict(run.remarks)
    return report


class _Run:
    """Takes file after file and keeps count."""

    def __init__(self) -> None:
        self.report = RawReport()
        self.questions: set[str] = set()
        self.remarks: Counter[str] = Counter()
        self._numbered: dict[tuple[str, int], str] = {}
        self._contents: dict[tuple[str, int], tuple[str, str]] = {}

    def add_file(self, path: Path) -> None:
        """Check one file."""
        report, before = self.report, self.report.traces + self.report.bad_traces
        report.files += 1
        try:
            position = 0
            for content in raw_objects(path):
                for found in _checked(content, str(path), position):
                    position += 1
                    if isinstance(found, TraceError):
                        self._refuse(path, found)
                    else:
                        self._take(path, found)
        except TraceError as error:  # of the file or a container of traces
            report.bad_files += 1
            report.problems.append(
                RawProblem(str(path), error.detail, error.position, error.question_id)
            )
            return
        if report.traces + report.bad_traces == before:
            report.bad_files += 1
            report.problems.append(RawProblem(str(path), "the file holds no traces; leave it out."))

    def refuse_file(self, error: TraceError) -> None:
        """Count a match that is not a trace file."""
        self.report.files += 1
        self.report.bad_files += 1
        self.report.problems.append(RawProblem(str(error.file), error.detail))

    def _refuse(self, path: Path, error: TraceError) -> None:
        self.report.bad_traces += 1
        self.report.problems.append(
            RawProblem(str(path), error.detail, error.position, error.question_id)
        )

    def _take(self, path: Path, trace: Trace) -> None:
        """Count a valid trace, unless it is a copy of another."""
        detail = _map_problem(trace) or self._clash(trace)
        if detail is not None:
            self.report.bad_traces += 1
            self.report.problems.append(
                RawProblem(str(path), detail, trace.position, trace.question_id)
            )
            return
        self.report.traces += 1
        self.report.tokens += trace.num_tokens
        self.questions.add(trace.question_id)
        self.remarks.update(trace.remarks)

    def _clash(self, trace: Trace) -> str | None:
        """Return why packing would refuse a trace after the earlier ones."""
        place = f"{trace.file}, trace {trace.position}"
        if trace.trace_number is not None:
            first = self._numbered.setdefault((trace.question_id, trace.trace_number), place)
            if first != place:
                return f"has trace number {trace.trace_number}, as has {first}."
            return None
        # Within a file equal traces may be equal answers; across files they are a copy.
        digest = xxhash.xxh3_64_intdigest(trace.hidden.data)
        file, first = self._contents.setdefault((trace.question_id, digest), (trace.file, place))
        if file != trace.file:
            return (
                f"is the same trace as {first}; if the file is no copy, give the traces a"
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
    """Yield each trace in an object of a file, or what is wrong with it.

    Raises:
        TraceError: The object holds no traces.
    """
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
    """Yield the traces of a preprocessed file; behind a bad one, go on with those after it."""
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
