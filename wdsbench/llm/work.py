"""The batches and files of an extraction, with or without a journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch

from wdsbench.errors import ModelError, first_line
from wdsbench.llm.asks import Ask, PromptBatch
from wdsbench.llm.decode import generate
from wdsbench.llm.journal import (
    BatchRecord,
    Failure,
    Journal,
    JournalState,
    batch_file,
    write_failures,
)
from wdsbench.llm.options import ExtractOptions
from wdsbench.llm.states import Answered, StateReader
from wdsbench.progress import Progress
from wdsbench.traces.write import write_traces

_ONE_THREAD_PARAMETERS: Final = 20_000_000
#: Failures without any trace after which the model is the likely cause.
_MAX_FAILURES: Final = 64
_COUNTS: Final = ("tokens", "empty", "unfinished", "wide", "straddled")


class FileSink(Protocol):
    """Processes trace files as soon as they are complete, in their order.

    After a file was removed, the extraction can be resumed only with the same ``destination``.
    """

    destination: str

    def begin(self) -> None:
        """Prepare; called once the folder and the settings of the extraction are valid."""

    def on_file_written(self, path: Path) -> Sequence[Path]:
        """Process a complete file; return files of this and earlier calls that may be removed.

        A resumed run calls this for earlier files too, some of which may have been removed.
        """

    def finish(self) -> Sequence[Path]:
        """Finish after the last file; return the files that may be removed."""


@dataclass
class ExtractRun:
    """Progress of an extraction."""

    out_dir: Path
    reader: StateReader
    options: ExtractOptions
    failures: list[Failure]  # refused prompts, then failures of the batches
    refused: int
    sink: FileSink | None = None
    journal: Journal | None = None
    # Sums over traces.
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    numbers: list[int] = field(default_factory=list)  # numbers of the files written
    removed: set[int] = field(default_factory=set)  # numbers of the files removed
    traces: int = 0
    resumed: int = 0  # number of traces of an earlier run

    @property
    def files(self) -> list[Path]:
        """Existing files, in their order."""
        return [self.path_of(number) for number in self.numbers if number not in self.removed]

    def path_of(self, number: int) -> Path:
        """Return the path of trace file ``number``."""
        return self.out_dir / batch_file(number, self.options.file_format)

    def add(self, record: BatchRecord) -> None:
        """Count a finished batch."""
        self.traces += len(record.traces)
        self.failures += record.failed
        for name in _COUNTS:
            self.counts[name] += record.counts.get(name, 0)

    def restore(self, batches: Sequence[PromptBatch], state: JournalState) -> list[PromptBatch]:
        """Restore the progress of an earlier run; return the batches that remain to be done."""
        for batch in batches:
            record = state.batches.get(batch.number)
            if record is not None:
                self.add(record)
        self.resumed = self.traces
        self.numbers += [number for number in sorted(state.files) if state.files[number]]
        self.removed |= {n for n in state.removed if not self.path_of(n).exists()}
        if self.journal is not None:
            for number in state.files:
                self.journal.remove_part(number)
        return [
            batch
            for batch in batches
            if batch.number not in state.batches
            # The earlier run may have died between the last batch of a file and the file.
            or (batch.closes_file and batch.file not in state.files)
        ]

    def write_file(self, number: int, traces: dict[int, dict[str, Any]]) -> None:
        """Write a complete file, unless it has no traces."""
        if traces:
            write_traces(self.path_of(number), [traces[place] for place in sorted(traces)])
            self.numbers.append(number)
        write_failures(self.out_dir, self.failures)
        if self.journal is not None:
            self.journal.close_file(number, len(traces))

    def pass_on(self, number: int) -> None:
        """Pass a complete file to the sink, if any, and remove files it no longer needs."""
        if self.sink is None:
            return
        if self.journal is not None:
            self.journal.set_destination(self.sink.destination)
        self.remove(self.sink.on_file_written(self.path_of(number)))

    def remove(self, paths: Sequence[Path]) -> None:
        """Remove files of this run, after recording it in the journal."""
        removable = set(paths)
        numbers = [number for number in self.numbers if self.path_of(number) in removable]
        if numbers and self.journal is not None:
            self.journal.record_removed(numbers)
        for number in numbers:
            self.path_of(number).unlink(missing_ok=True)
        self.removed.update(numbers)

    def check_failures(self) -> None:
        """Raise ModelError if the run has many failures and no trace."""
        tried = len(self.failures) - self.refused
        if not self.traces and tried >= _MAX_FAILURES:
            raise ModelError(
                f"the first {tried} questions all failed; the last of them:"
                f" {self.failures[-1].reason}"
            )


def run_batches(
    run: ExtractRun,
    batches: Sequence[PromptBatch],
    state: JournalState,
    progress: Progress,
) -> None:
    """Process the remaining batches, write every complete file and pass it to the sink."""
    remaining = run.restore(batches, state)
    if run.sink is not None and run.numbers:
        earlier = list(run.numbers)
        for number in progress(earlier, len(earlier), "packing what was extracted"):
            run.pass_on(number)
    traces: dict[int, dict[str, Any]] = {}  # of the current file, by place
    current = 0
    for batch in progress(remaining, len(remaining), "extracting"):
        if batch.file != current:
            current = batch.file
            traces = {} if run.journal is None else run.journal.finished_traces(current)
        if batch.number not in state.batches:
            record, own = _answer(run, batch)
            run.add(record)
            traces.update(zip((place for place, _, _ in record.traces), own, strict=True))
            if run.journal is not None:
                run.journal.add_batch(record, own)
            run.check_failures()
        if batch.closes_file:
            run.write_file(batch.file, traces)
            written = bool(traces)
            traces = {}  # free the memory before the sink runs
            if written:
                run.pass_on(batch.file)


def _answer(run: ExtractRun, batch: PromptBatch) -> tuple[BatchRecord, list[dict[str, Any]]]:
    traces: list[dict[str, Any]] = []
    record = BatchRecord(batch.number, batch.file, [], [], dict.fromkeys(_COUNTS, 0))
    for ask, item, outcome in _outcomes(run, batch.asks):
        if not isinstance(outcome, dict):
            if run.options.on_error == "fail":
                raise outcome
            record.failed.append(failure_of(ask, str(outcome)))
            continue
        assert item is not None
        record.traces.append((ask.place, ask.question.question_id, ask.trace_number))
        traces.append(outcome)
        record.counts["tokens"] += len(outcome["tokens"])
        record.counts["empty"] += item.empty
        record.counts["unfinished"] += not item.finished
        record.counts["straddled"] += item.straddled
        record.counts["wide"] += outcome["hidden_states"][0].dtype != np.float16
    return record, traces


def _outcomes(
    run: ExtractRun, asks: Sequence[Ask]
) -> Iterator[tuple[Ask, Answered | None, dict[str, Any] | ModelError]]:
    """Yield each ask with its answer and its raw trace or error.

    A batch that exceeds the GPU's memory is repeated one by one.
    """
    try:
        yield from _outcomes_together(run, asks)
        return
    except torch.OutOfMemoryError as error:
        if len(asks) == 1 or run.options.on_error == "fail":
            refusal = ModelError(
                f"question {asks[0].question.question_id}, in a batch of {len(asks)}: out of GPU"
                f" memory ({first_line(error)}); lower batch_size or max_new_tokens."
            )
            yield asks[0], None, refusal
            return
    torch.cuda.empty_cache()
    for ask in asks:
        yield from _outcomes(run, [ask])


def _outcomes_together(
    run: ExtractRun, asks: Sequence[Ask]
) -> list[tuple[Ask, Answered, dict[str, Any] | ModelError]]:
    reader, options = run.reader, run.options
    answers = generate(
        reader.model,
        reader.tokenizer,
        [ask.prompt for ask in asks],
        options.max_new_tokens,
        options,
        [(ask.question.question_id, ask.trace_number) for ask in asks],
        options.stop_texts,
    )
    numbered = options.answers_per_question > 1
    answered = [
        Answered(
            ask.question,
            ask.prompt,
            *answer,
            trace_number=ask.trace_number if numbered else None,
        )
        for ask, answer in zip(asks, answers, strict=True)
    ]
    return list(zip(asks, answered, reader.outcomes(answered), strict=True))


def failure_of(ask: Ask, reason: str) -> Failure:
    return Failure(ask.place, ask.question.question_id, ask.trace_number, " ".join(reason.split()))


@contextmanager
def threads_for(model: Any) -> Iterator[None]:
    """Run a small model on the CPU in one thread; restore torch's setting afterwards.

    Its operations take less time than waking a second thread: on two busy cores, 500 questions to
    1.2 M parameters took 15 s with two threads and 2.3 s with one.
    """
    threads = torch.get_num_threads()
    if model.device.type == "cpu" and model.num_parameters() < _ONE_THREAD_PARAMETERS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
