"""``wdsbench extract``."""

from __future__ import annotations

import dataclasses

from wdsbench.cli.terminal import bar, print_json, say, say_notes
from wdsbench.jobs.extract import Extracted, ExtractJob, extract


def extract_command(options: ExtractJob, as_json: bool) -> None:
    """Ask a causal language model; store its states, attention and log-probabilities.

    An interrupted run resumes with --resume and writes the same files and shards. Questions that
    give no trace are reported and listed in failures.jsonl; the exit code is 0 if there is any
    trace.

    Example: wdsbench extract --model ./my-model --questions questions.jsonl --out traces_data/
    """
    found = extract(options, progress=bar)
    if not as_json:
        _show(found, options)
        return
    report, packed = found.report, None if found.index is None else found.index.shardlist
    print_json(
        {
            **dataclasses.asdict(report),
            "files": [str(file) for file in report.files],
            "shards": None if packed is None else str(options.shards),
            "samples": None if packed is None else sum(shard.nsamples for shard in packed),
            "bytes": None if packed is None else sum(shard.filesize for shard in packed),
        }
    )


def _show(found: Extracted, options: ExtractJob) -> None:
    report, index, out = found.report, found.index, options.out
    say(
        f"{report.traces} traces of {report.tokens} tokens in"
        f" {len(report.files) + report.removed} files -> {out}"
    )
    noun = "answers" if options.answers_per_question > 1 else "questions"
    say_notes(
        {
            "of them were written by an earlier run": report.resumed,
            "answers were empty; their end token was kept": report.empty_answers,
            f"answers were cut at {options.max_new_tokens} tokens": report.unfinished_answers,
            "traces exceed the range of float16 and were stored in float32": report.wide_traces,
            f"{noun} gave no trace; {out / 'failures.jsonl'} has the reasons": report.failed,
        }
    )
    if index is None:
        return
    samples = sum(shard.nsamples for shard in index.shardlist)
    size_mb = sum(shard.filesize for shard in index.shardlist) / 1e6
    say(
        f"{samples} samples, {size_mb:.1f} MB in {len(index.shardlist)} shards -> {options.shards}"
        f"{f'; {report.removed} raw files removed' if report.removed else ''}"
    )
    unlabelled = sum(split.unlabelled for split in index.splits.values())
    say_notes({"samples have no label; wdsbench relabel adds labels": unlabelled})
