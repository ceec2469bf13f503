"""Raw trace files and scores in, a data set out.

Files are read one after the other and traces handed on one by one, so memory is bounded by one
file. Anything wrong stops the run with file, trace and question named and leaves nothing behind;
nothing is skipped that the caller has not asked to skip, and what is skipped is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wdsbench
from wdsbench.errors import PackError
from wdsbench.pack.labels import labels_entry
from wdsbench.pack.options import PackOptions
from wdsbench.pack.reduce import fit_reduction, parse_reduce
from wdsbench.pack.samples import SamplePacker, fields_of
from wdsbench.pack.scores import read_scores
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
    progress: Progress = no_progress,
) -> PackReport:
    """Pack raw trace files into a data set.

    Args:
        patterns: Paths or glob patterns of raw files.
        out: The data set's folder; made where it does not exist.
        scores: CSV of scores; None: labels come from the files.
        options: See :class:`PackOptions`.
        progress: Draws over files.

    Returns:
        What was written.

    Raises:
        TraceError: A file or trace that cannot be used.
        ScoreError: A bad score file, or a trace without a score.
        PackError: The folder cannot be used, or the disk is full.
        ValueError: No file matches a pattern.

    Whatever is raised, ``out`` is left as it was found.
    """
    options = options or PackOptions()
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

    components = parse_reduce(options.reduce)
    writer = DatasetWriter(out, shard_mb=options.shard_mb)
    inputs = []
    try:
        reduction = None if components is None else fit_reduction(training_traces(), components)
        run = SamplePacker(options, table, writer, reduction)
        for number, path in enumerate(progress(files, len(files), "packing")):
            before = run.samples
            for trace in read_traces(path):
                run.add(trace, split_of(number, trace))
            inputs.append({"file": path.name, "samples": run.samples - before})
        if run.shape is None:
            raise PackError(
                f"no trace to pack in {len(files)} files ({run.dropped} dropped for want of a "
                f"score)"
            )
        if reduction is not None:
            writer.add_file(*reduction.file())
        index = writer.finish(
            fields=fields_of(run),
            layers=run.totals.entries(),
            provenance=_provenance(run, inputs, scores, column),
            labels=labels,
        )
    except BaseException:
        writer.abort()
        raise
    return PackReport(
        index=index,
        samples=run.samples,
        bytes_written=sum(shard.filesize for shard in index.shardlist),
        dropped=run.dropped,
        unlabelled=run.unlabelled,
        without_attention=run.samples - run.attention.traces if options.attention else 0,
        remarks=dict(run.remarks),
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
        "remarks": dict(sorted(run.remarks.items())),
    }
