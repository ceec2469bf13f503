"""Raw trace files and scores in, a data set out.

Files are read one after the other, or by ``workers`` processes, and traces handed on one by one in
the files' order, so memory is bounded by ``workers + 1`` files (by one without workers) and the
bytes are the same. Anything wrong stops the run with file, trace and question named and leaves
nothing behind; nothing is skipped that the caller has not asked to skip, and what is skipped is
counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from wdsbench.pack.labels import Judge, labels_entry
from wdsbench.pack.memory import freed_memory_kept
from wdsbench.pack.options import PackOptions
from wdsbench.pack.order import OrderJudge
from wdsbench.pack.prepare import Preparer
from wdsbench.pack.reduce import fit_reduction, load_reduction, parse_reduce
from wdsbench.pack.resume import run_of
from wdsbench.pack.run import PackReport, PackRun
from wdsbench.pack.workers import prepared_files
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Trace
from wdsbench.shards.format.names import split_of_question, splits_of_files
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces
from wdsbench.traces.scores import read_scores

__all__ = ["PackReport", "pack"]


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

    Args:
        patterns: Paths or glob patterns of raw files.
        out: The data set's folder; made where it does not exist.
        scores: CSV of scores; None: labels come from the files.
        options: See :class:`PackOptions`.
        workers: Processes that read files; 1: this one. The bytes are the same.
        append: Add the files to the data set in ``out``, packed with the same options. Its shards
            stay as they are; until the new index is in place it is the old data set.
        resume: Go on where a run with the same arguments was interrupted; the bytes are those of
            an uninterrupted one. An error, too, then leaves what is finished.
        progress: Draws over files.

    Returns:
        What was written; of a run that appends, its own part.

    Raises:
        TraceError: A file or trace that cannot be used.
        ScoreError: A bad score file, or a trace without a score.
        PackError: The folder cannot be used, the disk is full, or a worker was killed.
        ValueError: No file matches a pattern.

    Whatever is raised, ``out`` is left as it was found (without ``resume``).
    """
    options = options or PackOptions()
    if workers < 1:
        raise ValueError(f"workers: {workers} is not 1 or more")
    files = expand_patterns(patterns)
    table, column = (None, None) if scores is None else read_scores(scores, options.score_column)
    labels = labels_entry(scores, column, options.threshold)
    file_splits = splits_of_files([path.name for path in files])
    by_file = options.split_by == "file"
    components = parse_reduce(options.reduce)
    if append and resume:
        raise ValueError(
            "append and resume: a run that appended and was killed left the old data set; append"
            " again without resume"
        )

    def split_of(number: int, trace: Trace) -> str:
        return file_splits[number] if by_file else split_of_question(trace.question_id)

    def training_traces() -> Iterator[Trace]:
        for number, path in enumerate(progress(files, len(files), "fitting components")):
            for trace in read_traces(path):
                if split_of(number, trace) == "train":
                    yield trace

    judge = OrderJudge(Judge(table, options))
    if append:
        opened = PackRun.appending(out, options, judge)
    else:
        opened = PackRun.open(out, options, judge, run_of(options, files, labels), resume=resume)
    with opened as run:
        if run.writer.base is not None:
            run.append_to(run.writer.base, labels)
        elif run.done.reduction is not None:
            run.samples.reduction = load_reduction(out / run.done.reduction)
        elif components is not None:
            run.samples.reduction = fit_reduction(training_traces(), components)
            run.writer.add_file(*run.samples.reduction.file())
            run.writer.remember({"reduction": run.samples.reduction.file()[0]})
        for number, path in enumerate(files):
            run.done.check_unchanged(number, path)
        unread = [(n, path) for n, path in enumerate(files) if not run.done.is_whole(n)]
        preparer = Preparer(options, table, run.samples.reduction)
        with (
            freed_memory_kept(),
            contextlib.closing(prepared_files(unread, preparer, workers)) as prepared,
        ):
            for number, path in enumerate(progress(files, len(files), "packing")):
                run.add(path, lambda: next(prepared)[1], partial(split_of, number))
        return run.finish(labels, scores)
