"""``wdsbench extract``, ``score`` and ``plan``."""

from __future__ import annotations

import dataclasses
import math

import typer

from wdsbench.cli.terminal import bar, print_json, say, say_notes, size_text
from wdsbench.jobs.extract import Extracted, ExtractJob, ScoreJob, extract, score
from wdsbench.jobs.plan import Plan, PlanJob, plan
from wdsbench.llm.measures import LabelCount


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
            "unfinished_share": report.unfinished_share,
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
    longer = f"extract again with --max-new-tokens {2 * options.max_new_tokens} --overwrite"
    longer += "" if options.stop else ", or end answers with --stop"
    noun = "answers" if options.answers_per_question > 1 else "questions"
    say_notes(
        {
            "of them were written by an earlier run": report.resumed,
            "answers were empty; the token that ended them was kept": report.empty_answers,
            f"answers ({report.unfinished_share:.0%}) were cut at {options.max_new_tokens} tokens;"
            f" {longer}": report.unfinished_answers,
            "answers lost text of the token in which a stop text began": report.straddled_answers,
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
    labels = LabelCount(
        samples - unlabelled, sum(split.hallucinated for split in index.splits.values())
    )
    if labels.is_one_sided:
        say(
            f"  warning: {options.score_column} labels {labels.hallucinated} of {labels.scored}"
            " samples hallucinated; wdsbench score names measures that separate them, wdsbench"
            " relabel uses one."
        )


def score_command(options: ScoreJob, as_json: bool) -> None:
    """Score answers against the questions' references, by several measures side by side.

    Exact match, token F1, ROUGE-L, contains and numeric are always computed, the best over the
    references; every --model and --judge adds a column. Measures that label (nearly) all answers
    the same are named. The column abstained marks answers that abstain and is not a score. If a
    question has several answers, the column trace has their number, as pack and relabel expect it.

    Example: wdsbench score --traces 'traces_data/*.pkl*' --questions questions.jsonl
    """
    report = score(options, progress=bar)
    if as_json:
        means = {name: None if math.isnan(mean) else mean for name, mean in report.means.items()}
        warnings = {"warnings": report.warnings}
        print_json({**dataclasses.asdict(report), "means": means, **means, **warnings})
        return
    say(
        f"{report.scored} answers: exact match {report.exact_match:.3f},"
        f" token F1 {report.token_f1:.3f} -> {options.out}"
    )
    for name, mean in report.means.items():
        count = report.labels[name]
        shown = f"mean {mean:.3f}, {count.hallucinated} of {count.scored} hallucinated"
        say(f"  {name:14} {shown if count.scored else 'no scores'}")
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
            **{
                f"prompts were too long for {name}, which gives no score": count
                for name, count in report.too_long.items()
            },
        }
    )
    for warning in report.warnings:
        say(f"  warning: {warning}")


def _shown(value: float | None) -> str:
    return "  -  " if value is None else f"{value:5.2f}"


def plan_command(options: PlanJob, as_json: bool) -> None:
    """Estimate bytes and time of an extraction; exit code 1 if it does not fit on the disk.

    Sizes follow from the model's configuration and the questions' tokens. A probe of a few
    questions improves them and measures the time. Free space is compared with raw files and shards
    together.

    Example: wdsbench plan --model ./my-model --questions questions.jsonl --out traces_data/
    """
    found = plan(options)
    if as_json:
        print_json(found.as_json())
    else:
        _show_plan(found, options)
    if not found.fits:
        raise typer.Exit(1)


def _show_plan(found: Plan, options: PlanJob) -> None:
    form, count = found.form, found.traces
    say(
        f"{count} traces of {form.layers} layers, {form.heads} heads, {form.features} features;"
        f" prompts of {found.prompt_tokens / count:.1f} tokens, answers of"
        f" {found.answer_tokens:.1f}{'' if found.probe else ' (the maximum)'}"
    )
    if found.refused:
        say(
            f"  note: {len(found.refused)} questions cannot be asked and are not counted; the"
            f" first: {found.refused[0].refusal}"
        )
    say(f"  {'per 1,000 traces':16} {'raw':>10} {'if float32':>10} {'shards':>10}   whole set")
    for name, row in found.rows.items():
        sizes = (row.raw, row.raw_float32, row.shards)
        say(
            f"  {name:16} {' '.join(f'{size_text(size):>10}' for size in sizes)}"
            f"   {size_text(row.needed)}, {'fits' if row.fits else 'does not fit'}"
        )
    probe = found.probe
    if probe is None or found.seconds is None:
        say("time: unknown without a probe (--probe 16)")
    else:
        say(
            f"time: {probe.seconds:.3g} s per trace in a probe of {probe.traces},"
            f" {_duration(found.seconds)} for all"
        )
        if probe.wide:
            say(f"  note: {probe.wide} of {probe.traces} exceed float16: float32 in raw files")
        if probe.cut:
            say(
                f"  note: {probe.cut} of {probe.traces} answers were cut at"
                f" {options.max_new_tokens} tokens (--max-new-tokens, --stop)"
            )
    say(f"memory: {size_text(found.file_memory)} for the traces of one file (--traces-per-file)")
    say(
        f"disk: --attention {found.attention} needs {size_text(found.chosen.needed)} for raw files"
        f" and shards, {size_text(found.free)} are free at {options.out}:"
        f" {'it fits' if found.fits else 'it does not fit'}"
    )
    if not found.fits:
        others = [name for name, row in found.rows.items() if row.fits]
        smaller = f"--attention {' or '.join(others)}; " if others else ""
        say(
            f"  to make it fit: {smaller}--limit with {found.traces_that_fit} traces; fewer"
            " --layers; --tokens answer or last"
        )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
