"""``wdsbench extract`` and ``score``."""

from __future__ import annotations

import dataclasses
import math

from wdsbench.cli.terminal import bar, print_json, say, say_notes
from wdsbench.jobs.extract import Extracted, ExtractJob, extract
from wdsbench.jobs.score import ScoreJob, score


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


def score_command(options: ScoreJob, as_json: bool) -> None:
    """Score answers against the questions' references, by several measures side by side.

    Exact match, token F1 and ROUGE-L are always computed, the best over the references; every
    --model adds a column. The column abstained marks answers that abstain and is not a score. If a
    question has several answers, the column trace has their number, as pack and relabel expect it.

    Example: wdsbench score --traces 'traces_data/*.pkl*' --questions questions.jsonl
    """
    report = score(options, progress=bar)
    if as_json:
        means = {name: None if math.isnan(mean) else mean for name, mean in report.means.items()}
        print_json({**dataclasses.asdict(report), "means": means, **means})
        return
    say(
        f"{report.scored} answers: exact match {report.exact_match:.3f},"
        f" token F1 {report.token_f1:.3f} -> {options.out}"
    )
    for name, mean in report.means.items():
        say(f"  {name:14} mean {mean:.3f}")
    if report.agreement:
        counted = report.scored - report.abstained
        say(f"  agreement ({counted} answers; kappa at {options.threshold:g}):")
    for pair in report.agreement:
        say(
            f"    {pair.first + ' / ' + pair.second:28} Pearson {_shown(pair.pearson)}, Spearman"
            f" {_shown(pair.spearman)}, kappa {_shown(pair.kappa)}"
        )
    say_notes(
        {
            f"answers abstain; their scores: {options.abstention_score}"
            " (--abstention-score)": report.abstained,
            "traces have no question in the file and were left out": report.traces_without_question,
            "questions have no trace": report.questions_without_trace,
            **{f"pairs were too long for {name} and cut": n for name, n in report.cut.items()},
        }
    )


def _shown(value: float | None) -> str:
    return "  -  " if value is None else f"{value:5.2f}"
