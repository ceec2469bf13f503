"""``wdsbench plan``."""

from __future__ import annotations

import typer

from wdsbench.cli.terminal import print_json, say, size_text
from wdsbench.jobs.plan import Plan, PlanJob, plan


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
        _show(found, options)
    if not found.fits:
        raise typer.Exit(1)


def _show(found: Plan, options: PlanJob) -> None:
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
