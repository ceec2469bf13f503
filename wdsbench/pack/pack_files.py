"""Raw trace files and scores in, a data set out.

Traces are written in the files' order, so the bytes do not depend on ``workers``, and memory is
bounded by ``workers + 1`` files (by one without workers). An error stops the run, names file, trace
and question, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from wdsbench.pack.labels import Labeller, NumberedLabeller, labels_entry
from wdsbench.pack.options import PackOptions
from wdsbench.pack.prepare import Preparer, freed_memory_kept
from wdsbench.pack.reduce import fit_reduction, load_reduction, parse_reduce
from wdsbench.pack.resume import settings_of
from wdsbench.pack.run import PackReport, PackRun, open_writer
from wdsbench.pack.samples import SampleBuilder
from wdsbench.pack.workers import prepared_files
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Trace
from wdsbench.shards.format.names import split_of_question, splits_of_files
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces
from wdsbench.traces.scores import read_scores


def pack(
    patterns: Sequence[str],
    out: Path,
    *,
    scores: Path | None = None,
    options: PackOptions | None = None,
    workers: int = 1,
    append: bool = False,
    resume: bool = False,
    progress: Progress = no_progress,
) -> PackReport:
    """Pack raw trace files into a data set.

    After an exception ``out`` is left as it was found (except with ``resume``).

    Args:
        patterns: Paths or glob patterns of raw files.
        out: Folder of the data set; created if necessary.
        scores: CSV of scores; None: labels come from the raw files.
        workers: Processes that read files; 1: this process. The bytes are the same.
        append: Add the files to the data set in ``out``, packed with the same options. Its shards
            are not changed; it is the old data set until the new index is in place.
        resume: Continue an interrupted run with the same arguments; the bytes are those of an
            uninterrupted run. After an error, too, finished shards are kept.

    Returns:
        What was written; with ``append``, the new part.

    Raises:
        TraceError: A file or trace cannot be used.
        ScoreError: The score file is damaged, or a trace has no score.
        PackError: The folder cannot be used, the disk is full, or a worker was killed.
        ValueError: No file matches a pattern, or an argument is out of range.
    """
    options = options or PackOptions()
    if workers < 1:
        raise ValueError(f"workers is {workers}; must be at least 1")
    if append and resume:
        raise ValueError(
            "append and resume: a killed run with append leaves the old data set; append again"
            " without resume"
        )
    files = expand_patterns(patterns)
    if options.group is not None and scores is None:
        raise ValueError(f"group {options.group!r} is a column of the score file; pass --scores")
    table, column = (
        (None, None) if scores is None else read_scores(scores, options.score_column, options.group)
    )
    labels = labels_entry(scores, column, options.threshold)
    file_splits = splits_of_files([path.name for path in files])
    by_file = options.split_by == "file"
    components = parse_reduce(options.reduce)

    def split_of(number: int, trace: Trace) -> str:
        return file_splits[number] if by_file else split_of_question(trace.question_id)

    def training_traces() -> Iterator[Trace]:
        for number, path in enumerate(progress(files, len(files), "fitting components")):
            for trace in read_traces(path):
                if split_of(number, trace) == "train":
                    yield trace

    samples = SampleBuilder(options, NumberedLabeller(Labeller(table, options)))
    settings = None if append else settings_of(options, files, labels)
    with open_writer(out, samples, settings, append=append, resume=resume) as writer:
        run = PackRun(writer, samples, labels)
        if run.earlier.reduction is not None:
            samples.reduction = load_reduction(out / run.earlier.reduction)
        elif components is not None and not append:
            samples.reduction = fit_reduction(training_traces(), components)
            name, data = samples.reduction.file()
            writer.add_file(name, data)
            writer.add_record({"reduction": name})
        for number, path in enumerate(files):
            run.earlier.check_unchanged(number, path)
        unread = [(n, path) for n, path in enumerate(files) if not run.earlier.is_finished(n)]
        preparer = Preparer(options, table, samples.reduction)
        with (
            freed_memory_kept(),
            contextlib.closing(prepared_files(unread, preparer, workers)) as prepared,
        ):
            for number, path in enumerate(progress(files, len(files), "packing")):
                run.add(path, lambda: next(prepared)[1], partial(split_of, number))
        return run.finish(labels, scores)
