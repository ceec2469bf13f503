"""The part that `pack` and `IncrementalPacker` share: files into an open writer, then the index.

The same files with the same options give the same bytes, because both use this code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import wdsbench
from wdsbench.errors import PackError
from wdsbench.pack.append import check_same_options, joined_labels, joined_provenance, load_base
from wdsbench.pack.prepare import Prepared
from wdsbench.pack.resume import (
    EarlierRun,
    add_finished_counts,
    check_removed_files,
    refuse_only_copy,
    stat_of,
)
from wdsbench.pack.samples import SampleBuilder, fields_of
from wdsbench.pack.tally import Tally
from wdsbench.records import Trace
from wdsbench.shards.format.index import IndexFile, LabelsEntry, PackedFile, Provenance
from wdsbench.shards.write.writer import DatasetWriter


@dataclass
class PackReport:
    """Result of a run.

    Attributes:
        bytes_written: Bytes of all shards.
        dropped: Traces left out because they have no score (``missing_score="drop"``).
        unlabelled: Traces stored without a label.
        without_attention: Traces without attention although it was requested.
        remarks: Changes that readers made to traces, with their counts.
    """

    index: IndexFile
    samples: int
    bytes_written: int
    dropped: int
    unlabelled: int
    without_attention: int
    remarks: dict[str, int]


def open_writer(
    out: Path,
    samples: SampleBuilder,
    settings: dict[str, Any] | None,
    *,
    append: bool = False,
    resume: bool = False,
    removed: Collection[str] = (),
) -> DatasetWriter:
    """Return a writer for the data set in ``out``, which the caller closes.

    ``settings`` decide the bytes (``resume.settings_of``); without them there is no journal.
    ``removed`` are names of files of the unfinished run that no longer exist. PackError: The folder
    cannot be used, or holds an unfinished run with other settings, or one that lacks samples of
    removed files, or one that must not be removed.
    """
    if not (resume or append):
        refuse_only_copy(out)
    return DatasetWriter(
        out,
        shard_mb=samples.options.shard_mb,
        run=settings,
        resume=resume,
        append=append,
        summary=samples.summary,
        check=partial(check_removed_files, removed=removed),
    )


class PackRun:
    """Adds files, numbered from 0, to an open writer and finishes the data set.

    Attributes:
        earlier: The finished part of an earlier run.
        finished: True once the index is written.
    """

    def __init__(
        self, writer: DatasetWriter, samples: SampleBuilder, labels: LabelsEntry | None = None
    ) -> None:
        """Load the state of an earlier run, or of the data set that is appended to; PackError if
        that was packed with other options or has another source of labels.
        """
        self.earlier = EarlierRun.of(writer)
        self.finished = False
        self._writer, self._samples = writer, samples
        self._inputs: list[PackedFile] = []
        self._before = Tally()
        add_finished_counts(samples, writer)
        if writer.base is not None and labels is not None:
            check_same_options(writer.base, samples.options, labels)
            load_base(samples, writer.base)
            self._before.add(samples.closed)

    def add(
        self,
        path: Path,
        traces: Callable[[], Iterable[Prepared]],
        split_of: Callable[[Trace], str],
    ) -> None:
        """Pack the next file. If all its samples are in finished shards, it need not exist and
        ``traces`` is not called.
        """
        samples, writer, number = self._samples, self._writer, len(self._inputs)
        count, dropped = samples.samples, samples.dropped
        if self.earlier.is_finished(number):
            self.earlier.replay(number, path, samples)
        else:
            writer.add_record({"begun": number, "name": path.name, "stat": stat_of(path)})
            finished = self.earlier.rows.get(number, {})
            samples.dropped_of.clear()
            for trace in traces():
                samples.add(
                    trace,
                    split_of(trace.trace),
                    writer,
                    file=number,
                    finished=trace.trace.position in finished,
                )
            writer.add_record(
                {
                    "ended": number,
                    "samples": samples.samples - count,
                    "dropped": samples.dropped - dropped,
                    "dropped_of": dict(samples.dropped_of),
                }
            )
        self._inputs.append(PackedFile(file=path.name, samples=samples.samples - count))

    def finish(self, labels: LabelsEntry, scores: Path | None) -> PackReport:
        """Write table and index and return what was written; if appending, the new part.

        PackError: There is no sample. ScoreError: The score file has rows of traces that were not
        added.
        """
        samples, base = self._samples, self._writer.base
        if not samples.samples:
            raise PackError(
                f"no trace to pack in {len(self._inputs)} files ({samples.dropped} dropped because"
                " they have no score)"
            )
        samples.labeller.check_counts(samples.traces_of)
        tally = samples.tally
        provenance = _provenance(samples, self._inputs, scores, labels.column)
        if base is not None:
            labels = joined_labels(base.labels, labels)
            provenance = joined_provenance(base.file.provenance, provenance)
        before = set() if base is None else {shard.url for shard in base.file.shardlist}
        index = self._writer.finish(
            fields=fields_of(samples),
            layers=tally.layers.entries(),
            provenance=provenance,
            labels=labels,
        )
        self.finished = True
        with_attention = tally.with_attention - self._before.with_attention
        return PackReport(
            index=index,
            samples=samples.samples,
            bytes_written=sum(s.filesize for s in index.shardlist if s.url not in before),
            dropped=samples.dropped,
            unlabelled=tally.unlabelled - self._before.unlabelled,
            without_attention=samples.samples - with_attention if samples.options.attention else 0,
            remarks=dict(tally.remarks - self._before.remarks),
        )


def _provenance(
    samples: SampleBuilder, inputs: Sequence[PackedFile], scores: Path | None, column: str | None
) -> Provenance:
    """Return the record of the run."""
    options = samples.options
    provenance = Provenance(
        wdsbench=wdsbench.__version__,
        inputs=list(inputs),
        scores=None if scores is None else scores.name,
        score_column=column,
        threshold=options.threshold,
        missing_score=options.missing(scored=scores is not None),
        dropped=samples.dropped,
        numbered=samples.numbered,
        split_by=options.split_by,
        attention=list(options.attention),
        edge_rule=options.edge_rule,
        head_threshold=options.head_threshold,
        reduction=None if samples.reduction is None else samples.reduction.file()[0],
        remarks=dict(sorted(samples.tally.remarks.items())),
    )
    if samples.layers is None:  # all layers of the model
        return provenance
    return provenance.model_copy(update={"layers": list(samples.layers)})
