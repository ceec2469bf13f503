"""One data set that is being packed, from an empty folder to the index; files go in one by one.

What ``pack`` (all files at once) and ``Packing`` (files as they come) have in common: the same
files with the same options give the same bytes, because the same lines here make them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import wdsbench
from wdsbench.errors import PackError
from wdsbench.pack.append import (
    check_same_options,
    joined_labels,
    joined_provenance,
    know_the_data_set,
)
from wdsbench.pack.options import PackOptions
from wdsbench.pack.order import OrderJudge
from wdsbench.pack.prepare import Prepared
from wdsbench.pack.resume import (
    Progressed,
    count_finished,
    require_no_only_copy,
    require_what_is_gone,
    stat_of,
)
from wdsbench.pack.samples import SamplePacker, fields_of
from wdsbench.pack.tally import Tally
from wdsbench.records import Trace
from wdsbench.shards.format.index import IndexFile, LabelsEntry
from wdsbench.shards.format.provenance import PackedFile, Provenance
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.writer import DatasetWriter


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


@dataclass
class PackRun:
    """A run over files, which are numbered from 0 in the order in which they are added.

    Leaving it as a context before ``finish`` gives the folder back: as it was found, or, with
    ``keep``, with what is finished in it.

    Attributes:
        samples: Makes the samples.
        writer: Takes them.
        keep: Whether what is finished stays when the run does not come to its end.
        done: What an earlier run did.
        inputs: Name and samples of each file, for the index.
        old: Counts over the data set that is appended to.
        finished: Whether the index is written.
    """

    samples: SamplePacker
    writer: DatasetWriter
    keep: bool
    done: Progressed = field(init=False)
    inputs: list[PackedFile] = field(default_factory=list)
    old: Tally = field(default_factory=Tally)
    finished: bool = False

    @classmethod
    def open(
        cls,
        out: Path,
        options: PackOptions,
        judge: OrderJudge,
        words: dict[str, Any],
        *,
        resume: bool,
        gone: Collection[str] = (),
    ) -> PackRun:
        """Return a run that makes a data set in ``out``, or goes on making it.

        Args:
            out: Made where it does not exist.
            options: How it is packed.
            judge: Of traces that do not say their number.
            words: What the bytes depend on, files' contents apart (``resume.run_of``).
            resume: Take over what an earlier run of the same words has finished, and keep what
                this one has when it does not come to its end.
            gone: Names of files of the earlier run that are not there any more.

        Raises:
            PackError: The folder cannot be used, or holds an unfinished run that may not be taken
                over, or not be thrown away; or it lacks samples of files that are gone.
        """
        samples = SamplePacker(options, judge)
        if not resume:
            require_no_only_copy(out)
        writer = DatasetWriter(
            out,
            shard_mb=options.shard_mb,
            run=words,
            resume=resume,
            summary=samples.summary,
            check=partial(require_what_is_gone, gone=gone),
        )
        return cls(samples, writer, keep=resume)

    @classmethod
    def appending(cls, out: Path, options: PackOptions, judge: OrderJudge) -> PackRun:
        """Return a run that adds to the data set in ``out`` (``append_to`` comes first).

        Raises:
            ShardError: There is none, or its index is damaged.
            PackError: Another process is writing there.
        """
        writer = DatasetWriter.appending(out, shard_mb=options.shard_mb)
        return cls(SamplePacker(options, judge), writer, keep=False)

    def __enter__(self) -> PackRun:
        """Know what an earlier run did."""
        try:
            self.done = Progressed.of(self.writer)
            count_finished(self.samples, self.writer)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of the folder."""
        if not self.finished:
            self._leave()

    def append_to(self, base: DatasetIndex, labels: LabelsEntry) -> None:
        """Know the data set that is appended to.

        Raises:
            PackError: It was packed in another way.
        """
        check_same_options(base, self.samples.options, labels)
        know_the_data_set(self.samples, base)
        self.old.add(self.samples.closed)

    def add(
        self,
        path: Path,
        traces: Callable[[], Iterable[Prepared]],
        split_of: Callable[[Trace], str],
    ) -> None:
        """Pack the next file.

        Args:
            path: Its path; there need be no file any more where all its samples are finished.
            traces: Returns its traces; not called where all its samples are finished.
            split_of: Returns the split of each.

        Raises:
            TraceError: A trace cannot be used.
            ScoreError: It has no score.
            PackError: The disk is full.
        """
        run, number = self.samples, len(self.inputs)
        samples, dropped = run.samples, run.dropped
        if self.done.is_whole(number):
            self.done.replay(number, path, run)
        else:
            self.writer.remember({"begun": number, "name": path.name, "stat": stat_of(path)})
            finished = self.done.rows.get(number, {})
            for trace in traces():
                run.add(
                    trace,
                    split_of(trace.trace),
                    self.writer,
                    file=number,
                    finished=trace.trace.position in finished,
                )
            self.writer.remember(
                {
                    "ended": number,
                    "samples": run.samples - samples,
                    "dropped": run.dropped - dropped,
                    "dropped_of": run.take_dropped(),
                }
            )
        self.inputs.append(PackedFile(file=path.name, samples=run.samples - samples))

    def finish(self, labels: LabelsEntry, scores: Path | None) -> PackReport:
        """Write table and index, and return what was written; of a run that appends, its own part.

        Args:
            labels: Where they come from.
            scores: The score file, where they come from one.

        Raises:
            ScoreError: The score file has rows of traces that did not come.
            PackError: There is no sample, or the disk is full.
        """
        run = self.samples
        if not run.samples:
            raise PackError(
                f"no trace to pack in {len(self.inputs)} files ({run.dropped} dropped for want of"
                " a score)"
            )
        run.order.check(run.traces_of)
        tally, base = run.tally, self.writer.base
        provenance = _provenance(run, self.inputs, scores, labels.column)
        if base is not None:
            labels = joined_labels(base.labels, labels)
            provenance = joined_provenance(base.file.provenance, provenance)
        before = set() if base is None else {shard.url for shard in base.file.shardlist}
        index = self.writer.finish(
            fields=fields_of(run),
            layers=tally.layers.entries(),
            provenance=provenance,
            labels=labels,
        )
        self.finished = True
        with_attention = tally.with_attention - self.old.with_attention
        return PackReport(
            index=index,
            samples=run.samples,
            bytes_written=sum(s.filesize for s in index.shardlist if s.url not in before),
            dropped=run.dropped,
            unlabelled=tally.unlabelled - self.old.unlabelled,
            without_attention=run.samples - with_attention if run.options.attention else 0,
            remarks=dict(tally.remarks - self.old.remarks),
        )

    def _leave(self) -> None:
        if self.keep:
            self.writer.suspend()
        else:
            self.writer.abort()


def _provenance(
    run: SamplePacker, inputs: Sequence[PackedFile], scores: Path | None, column: str | None
) -> Provenance:
    """Return the record of the run."""
    provenance = Provenance(
        wdsbench=wdsbench.__version__,
        inputs=list(inputs),
        scores=None if scores is None else scores.name,
        score_column=column,
        threshold=run.options.threshold,
        missing_score=run.options.missing(scored=scores is not None),
        dropped=run.dropped,
        numbered=run.numbered,
        split_by=run.options.split_by,
        attention=list(run.options.attention),
        edge_rule=run.options.edge_rule,
        head_threshold=run.options.head_threshold,
        reduction=None if run.reduction is None else run.reduction.file()[0],
        remarks=dict(sorted(run.tally.remarks.items())),
    )
    if run.layers is None:  # all of the model's
        return provenance
    return provenance.model_copy(update={"layers": list(run.layers)})
