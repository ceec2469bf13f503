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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wdsbench
from wdsbench.errors import PackError
from wdsbench.pack.append import (
    check_same_options,
    joined_labels,
    joined_provenance,
    know_the_data_set,
)
from wdsbench.pack.labels import labels_entry
from wdsbench.pack.memory import freed_memory_kept
from wdsbench.pack.options import PackOptions
from wdsbench.pack.prepare import Preparer
from wdsbench.pack.reduce import fit_reduction, load_reduction, parse_reduce
from wdsbench.pack.resume import Progressed, run_of, stat_of
from wdsbench.pack.samples import SamplePacker, fields_of
from wdsbench.pack.scores import read_scores
from wdsbench.pack.tally import Tally
from wdsbench.pack.workers import prepared_files
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Trace
from wdsbench.shards.index import IndexFile
from wdsbench.shards.names import split_of_question, splits_of_files
from wdsbench.shards.writer import DatasetWriter
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces


@dataclass
class PackReport:
    """What a run did.

    Attributes:
        index: The data set's index.
        samples: Samples written.
        bytes_written: Bytes of all shards.
        dropped: Traces left out for want of a score (``missing_score="drop"``).
        unlabelled: Traces kept without a label.
        without_attention: Traces that brought no attention although it was asked for.
        remarks: What readers changed to bring traces into form, and how often.
    """

    index: IndexFile
    samples: int
    bytes_written: int
    dropped: int
    unlabelled: int
    without_attention: int
    remarks: dict[str, int]


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

    def split_of(number: int, trace: Trace) -> str:
        return file_splits[number] if by_file else split_of_question(trace.question_id)

    def training_traces() -> Iterator[Trace]:
        for number, path in enumerate(progress(files, len(files), "fitting components")):
            for trace in read_traces(path):
                if split_of(number, trace) == "train":
                    yield trace

    if append and resume:
        raise ValueError(
            "append and resume: a run that appended and was killed left the old data set; append"
            " again without resume"
        )
    components = parse_reduce(options.reduce)
    run = SamplePacker(options)
    if append:
        writer = DatasetWriter.appending(out, shard_mb=options.shard_mb)
    else:
        writer = DatasetWriter(
            out,
            shard_mb=options.shard_mb,
            run=run_of(options, files, labels),
            resume=resume,
            summary=run.summary,
        )
    inputs = []
    old = Tally()
    try:
        done = Progressed.of(run, writer)
        if writer.base is not None:
            check_same_options(writer.base, options, labels)
            know_the_data_set(run, writer.base)
            old.add(run.closed)
        elif done.reduction is not None:
            run.reduction = load_reduction(out / done.reduction)
        elif components is not None:
            run.reduction = fit_reduction(training_traces(), components)
            writer.add_file(*run.reduction.file())
            writer.remember({"reduction": run.reduction.file()[0]})
        for number, path in enumerate(files):
            done.check_unchanged(number, path)
        unread = [(n, path) for n, path in enumerate(files) if not done.is_whole(n)]
        preparer = Preparer(options, table, run.reduction)
        with (
            freed_memory_kept(),
            contextlib.closing(prepared_files(unread, preparer, workers)) as prepared,
        ):
            for number, path in enumerate(progress(files, len(files), "packing")):
                samples, dropped = run.samples, run.dropped
                if done.is_whole(number):
                    done.replay(number, path, run)
                else:
                    writer.remember({"begun": number, "stat": stat_of(path)})
                    finished = done.rows.get(number, {})
                    for trace in next(prepared)[1]:
                        run.add(
                            trace,
                            split_of(number, trace.trace),
                            writer,
                            file=number,
                            finished=trace.trace.position in finished,
                        )
                    writer.remember(
                        {
                            "ended": number,
                            "samples": run.samples - samples,
                            "dropped": run.dropped - dropped,
                        }
                    )
                inputs.append({"file": path.name, "samples": run.samples - samples})
        if not run.samples:
            raise PackError(
                f"no trace to pack in {len(files)} files ({run.dropped} dropped for want of a "
                f"score)"
            )
        tally = run.tally
        provenance = _provenance(run, inputs, scores, column)
        base = writer.base
        if base is not None:
            labels = joined_labels(base.labels, labels)
            provenance = joined_provenance(base.file.provenance, provenance)
        before = set() if base is None else {shard.url for shard in base.file.shardlist}
        index = writer.finish(
            fields=fields_of(run),
            layers=tally.layers.entries(),
            provenance=provenance,
            labels=labels,
        )
    except BaseException:
        if resume:
            writer.suspend()
        else:
            writer.abort()
        raise
    return PackReport(
        index=index,
        samples=run.samples,
        bytes_written=sum(s.filesize for s in index.shardlist if s.url not in before),
        dropped=run.dropped,
        unlabelled=tally.unlabelled - old.unlabelled,
        without_attention=(
            run.samples - (tally.with_attention - old.with_attention) if options.attention else 0
        ),
        remarks=dict(tally.remarks - old.remarks),
    )


def _provenance(
    run: SamplePacker, inputs: list[dict[str, Any]], scores: Path | None, column: str | None
) -> dict[str, Any]:
    """Return where the data came from: names, not paths, so that the same input gives the same
    bytes anywhere.
    """
    return {
        "wdsbench": wdsbench.__version__,
        "inputs": inputs,
        "scores": None if scores is None else scores.name,
        "score_column": column,
        "threshold": run.options.threshold,
        "missing_score": run.options.missing_score,
        "dropped": run.dropped,
        "split_by": run.options.split_by,
        "attention": list(run.options.attention),
        "edge_rule": run.options.edge_rule,
        "head_threshold": run.options.head_threshold,
        "reduction": None if run.reduction is None else run.reduction.file()[0],
        "remarks": dict(sorted(run.tally.remarks.items())),
    }
