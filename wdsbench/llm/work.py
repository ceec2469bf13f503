"""The work of an extraction: batch after batch, file after file, with or without a journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch

from wdsbench.errors import ModelError
from wdsbench.llm.asks import Ask, Batch
from wdsbench.llm.decode import Decoding, generate
from wdsbench.llm.journal import (
    BatchRecord,
    Failure,
    Journal,
    JournalState,
    batch_file,
    write_failures,
)
from wdsbench.llm.states import Answered, StateReader
from wdsbench.progress import Progress
from wdsbench.traces.write import write_traces

_ONE_THREAD_PARAMETERS: Final = 20_000_000
#: When so many traces have failed and none has come, the model is at fault, not the questions.
_HOPELESS: Final = 64
_COUNTS: Final = ("tokens", "empty", "unfinished", "wide")


@dataclass(frozen=True)
class Job:
    """What stays the same from batch to batch.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        reader: The second pass.
        decoding: How answers are chosen.
        max_new_tokens: Longest answer.
        numbered: Whether traces say their number.
        record_failures: Whether a trace that fails leaves the others alone.
    """

    model: Any
    tokenizer: Any
    reader: StateReader
    decoding: Decoding
    max_new_tokens: int
    numbered: bool
    record_failures: bool


class FileTaker(Protocol):
    """Takes trace files as soon as they are whole, in their order.

    Attributes:
        place: Where they go; a run that goes on must give them to the same place once files were
            removed.
    """

    place: str

    def begin(self) -> None:
        """Be ready: the extraction's own folder and settings are found right."""

    def take(self, path: Path) -> Sequence[Path]:
        """Take a file, which an earlier run may have given already, and which may then be gone.

        Returns:
            Files, of this and earlier calls, that are not needed any more: they are removed.
        """

    def finish(self) -> Sequence[Path]:
        """Know that all have come; returns as ``take`` does."""


@dataclass
class Run:
    """What has come so far.

    Attributes:
        out_dir: Where files go.
        file_format: End of their names.
        failures: Of prompts at first, then of batches too.
        refused: How many were refused before the model saw them.
        counts: Sums over traces.
        taker: Takes whole files.
        numbers: Of the files that were written, in their order.
        removed: Of them, those that were given away.
        traces: Finished.
        resumed: Of them, those of an earlier run.
    """

    out_dir: Path
    file_format: str
    failures: list[Failure]
    refused: int
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    taker: FileTaker | None = None
    numbers: list[int] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    traces: int = 0
    resumed: int = 0

    def take(self, record: BatchRecord) -> None:
        """Count a finished batch."""
        self.traces += len(record.traces)
        self.failures += record.failed
        for name in _COUNTS:
            self.counts[name] += record.counts[name]

    @property
    def files(self) -> list[Path]:
        """The files that are there, in their order."""
        return [self.path_of(number) for number in self.numbers if number not in self.removed]

    def path_of(self, number: int) -> Path:
        """Return the path of a trace file."""
        return self.out_dir / batch_file(number, self.file_format)

    def close_file(self, number: int, traces: dict[int, dict[str, Any]]) -> None:
        """Write a file that has all its traces; none: no file."""
        if traces:
            write_traces(self.path_of(number), [traces[place] for place in sorted(traces)])
            self.numbers.append(number)
        write_failures(self.out_dir, self.failures)

    def hand_over(self, number: int, journal: Journal | None) -> None:
        """Give a whole file to the taker, if there is one, and remove what is not needed then."""
        if self.taker is None:
            return
        if journal is not None:
            journal.name_taker(self.taker.place)
        self.remove(self.taker.take(self.path_of(number)), journal)

    def remove(self, paths: Sequence[Path], journal: Journal | None) -> None:
        """Remove files of this run, of which the journal knows before."""
        given = set(paths)
        numbers = [number for number in self.numbers if self.path_of(number) in given]
        if numbers and journal is not None:
            journal.let_go(numbers)
        for number in numbers:
            self.path_of(number).unlink(missing_ok=True)
        self.removed.update(numbers)

    def require_hope(self) -> None:
        """Raise ModelError where nothing but failures has come for long."""
        tried = len(self.failures) - self.refused
        if not self.traces and tried >= _HOPELESS:
            raise ModelError(
                f"the first {tried} questions all failed; the last of them:"
                f" {self.failures[-1].reason}"
            )


def run_batches(
    job: Job,
    run: Run,
    batches: Sequence[Batch],
    state: JournalState,
    journal: Journal | None,
    progress: Progress,
) -> None:
    """Do the batches that are not done, and write every file that has all its traces; give each to
    the taker.
    """
    for batch in batches:
        record = state.batches.get(batch.number)
        if record is not None:
            run.take(record)
    run.resumed = run.traces
    whole = [number for number in sorted(state.files) if state.files[number]]
    run.numbers += whole
    run.removed |= {n for n in state.removed if not run.path_of(n).exists()}
    if journal is not None:
        for number in state.files:
            journal.drop_part(number)
    if run.taker is not None and whole:
        for number in progress(whole, len(whole), "packing what was extracted"):
            run.hand_over(number, journal)
    to_do = [
        batch
        for batch in batches
        if batch.number not in state.batches
        # Death may have come between the last batch of a file and the file.
        or (batch.closes_file and batch.file not in state.files)
    ]
    traces: dict[int, dict[str, Any]] = {}  # of the file that is being filled, by place
    filling = 0
    for batch in progress(to_do, len(to_do), "extracting"):
        if batch.file != filling:
            filling = batch.file
            traces = journal.finished_traces(filling) if journal is not None else {}
        if batch.number not in state.batches:
            record, own = _answer(job, batch)
            run.take(record)
            traces.update(zip((place for place, _, _ in record.traces), own, strict=True))
            if journal is not None:
                journal.add_batch(record, own)
            run.require_hope()
        if batch.closes_file:
            run.close_file(batch.file, traces)
            if journal is not None:
                journal.close_file(batch.file, len(traces))
            written = bool(traces)
            traces = {}  # of a taker's memory this file is no part
            if written:
                run.hand_over(batch.file, journal)


def _answer(job: Job, batch: Batch) -> tuple[BatchRecord, list[dict[str, Any]]]:
    """Return what the batch gives, and its traces."""
    traces: list[dict[str, Any]] = []
    record = BatchRecord(batch.number, batch.file, [], [], dict.fromkeys(_COUNTS, 0))
    for ask, item, outcome in _outcomes(job, batch.asks):
        if not isinstance(outcome, dict):
            if not job.record_failures:
                raise outcome
            record.failed.append(failure_of(ask, str(outcome)))
            continue
        assert item is not None
        record.traces.append((ask.place, ask.question.question_id, ask.trace_number))
        traces.append(outcome)
        record.counts["tokens"] += len(outcome["tokens"])
        record.counts["empty"] += item.empty
        record.counts["unfinished"] += not item.finished
        record.counts["wide"] += outcome["hidden_states"][0].dtype != np.float16
    return record, traces


def _outcomes(
    job: Job, asks: Sequence[Ask]
) -> Iterator[tuple[Ask, Answered | None, dict[str, Any] | ModelError]]:
    """Yield each ask with its answer, and its raw trace or why there is none.

    What does not fit in the GPU's memory together is tried one by one.
    """
    try:
        yield from _together(job, asks)
        return
    except torch.OutOfMemoryError as error:
        if len(asks) == 1 or not job.record_failures:
            refusal = ModelError(
                f"question {asks[0].question.question_id}, in a batch of {len(asks)}: out of GPU"
                f" memory ({str(error).splitlines()[0]}); lower batch_size or max_new_tokens."
            )
            yield asks[0], None, refusal
            return
    torch.cuda.empty_cache()
    for ask in asks:
        yield from _outcomes(job, [ask])


def _together(
    job: Job, asks: Sequence[Ask]
) -> list[tuple[Ask, Answered, dict[str, Any] | ModelError]]:
    answers = generate(
        job.model,
        job.tokenizer,
        [ask.prompt for ask in asks],
        job.max_new_tokens,
        job.decoding,
        [(ask.question.question_id, ask.trace_number) for ask in asks],
    )
    answered = [
        Answered(ask.question, ask.prompt, *answer, ask.trace_number if job.numbered else None)
        for ask, answer in zip(asks, answers, strict=True)
    ]
    return list(zip(asks, answered, job.reader.outcomes(answered), strict=True))


def failure_of(ask: Ask, reason: str) -> Failure:
    return Failure(ask.place, ask.question.question_id, ask.trace_number, " ".join(reason.split()))


@contextmanager
def threads_for(model: Any) -> Iterator[None]:
    """Let a small model on the CPU run in one thread, and put torch's setting back after it.

    Its operations are shorter than waking a second thread takes, and OpenMP's threads spin while
    they wait: measured on two cores with other work on them, 500 questions to 1.2 M parameters
    took 15 s with two threads and 2.3 s with one.
    """
    threads = torch.get_num_threads()
    if model.device.type == "cpu" and model.num_parameters() < _ONE_THREAD_PARAMETERS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
