"""``wdsbench plan``: what an extraction will take, before it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from wdsbench.cli.terminal import all_words, print_json, stdout
from wdsbench.errors import ModelError

if TYPE_CHECKING:
    from wdsbench.llm.asks import Ask

EXAMPLE = "wdsbench plan --model ./my-model --questions questions.jsonl --out traces_data/"

_AUTO_PROBE = 16
_WEIGHTS = ("*.safetensors", "*.bin")


def command(
    model: str = typer.Option(..., help="Folder in the transformers format, or a hub name."),
    questions: str = typer.Option(..., help="As extract takes them."),
    out: Path = typer.Option(Path("traces_data"), help="Where the traces will go."),
    limit: int | None = typer.Option(None, help="Only the first so many questions."),
    attention: str = typer.Option(
        "full", help="What extract will keep of attention: full, edges, heads, sketch, or none."
    ),
    edge_rule: str = typer.Option("top:0.35", help="Of edges: top:SHARE or threshold:WEIGHT."),
    head_threshold: float = typer.Option(0.05, help="Of heads: the least weight of an edge."),
    max_new_tokens: int = typer.Option(32, help="Longest answer in tokens."),
    answers_per_question: int = typer.Option(1, help="Traces of every question."),
    template: str = typer.Option("{question}", help="Prompt, with {question} in it."),
    chat: bool = typer.Option(False, "--chat", help="Put the prompt into the chat template."),
    system: str | None = typer.Option(None, help="Of --chat: what the system says before."),
    layers: str | None = typer.Option(None, help="Layers that are kept, from 0: 0,15 [all]."),
    tokens: str = typer.Option("all", help="Tokens whose states are kept: all, answer, or last."),
    traces_per_file: int = typer.Option(500, help="Traces in one file."),
    probe: int | None = typer.Option(
        None,
        help="Questions that are really asked, to measure time, answers and compression; 0: none"
        " [16 where the model's weights lie in a folder].",
    ),
    dtype: str = typer.Option("float32", help="Of the probe: float32, float16 or bfloat16."),
    device: str = typer.Option("cpu", help="Of the probe: cpu, cuda, cuda:1, ..."),
    revision: str | None = typer.Option(None, help="Branch, tag or commit on the hub."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one line of JSON."),
) -> None:
    """Say how many bytes and how much time an extraction takes; exit code 1 if it does not fit.

    Sizes come from the model's configuration and the questions' tokens; a probe of a few questions
    makes them sharper and says how long it takes. Free disk is compared with raw files and shards
    side by side.
    """
    from wdsbench.cli.extract import layer_numbers
    from wdsbench.llm import plan
    from wdsbench.llm.asks import make_asks
    from wdsbench.llm.named import load_questions
    from wdsbench.llm.options import ModelOptions, PlanOptions

    kinds = all_words([attention])
    if not kinds:
        raise ValueError(f"--attention {attention!r} names nothing; none keeps nothing")
    kept: tuple[str, ...] = () if kinds == ["none"] else tuple(kinds)
    chosen = layer_numbers(layers)
    options = PlanOptions(
        max_new_tokens=max_new_tokens,
        answers_per_question=answers_per_question,
        template=template,
        chat=chat,
        system=system,
        layers=chosen,
        tokens=tokens,
        attention=kept,
        edge_rule=edge_rule,
        head_threshold=head_threshold,
        traces_per_file=traces_per_file,
        probe=probe,
    )
    free = plan.free_bytes(out)
    asked = load_questions(questions, limit)
    config, form, tokenizer = plan.load_form(model, revision)
    if chosen is not None and (not chosen or set(chosen) - set(range(form.layers))):
        raise ValueError(f"--layers {layers}: the model has layers 0 to {form.layers - 1}")
    asks = make_asks(config, tokenizer, asked, dataclasses.replace(options, answers_per_question=1))
    refused = [ask for ask in asks if ask.refusal is not None]
    asks = [ask for ask in asks if ask.refusal is None]
    if not asks:
        raise ModelError(
            f"none of {len(asked)} questions can be asked; the first: {refused[0].refusal}"
        )
    prompts = np.array([len(ask.prompt) for ask in asks], np.int64)
    traces = len(prompts) * answers_per_question
    rates = plan.Rates(answer_tokens=max_new_tokens)
    measured = None
    if probe is None:
        probe = _AUTO_PROBE if any(any(Path(model).glob(name)) for name in _WEIGHTS) else 0
    if probe > 0:
        from wdsbench.llm.model import load_model

        measured = plan.probe(
            *load_model(model, ModelOptions(dtype=dtype, device=device, revision=revision)),
            [ask.question for ask in asks],
            form,
            options,
            probe,
        )
        rates = measured.rates

    def sizes(of: Sequence[str]) -> plan.Sizes:
        kinds = dataclasses.replace(options, attention=tuple(of))
        each = plan.estimate(form, prompts, kinds, rates)
        return each.scaled(answers_per_question)

    def needed(of: Sequence[str]) -> int:
        packed = ("edges", "sketch") if "full" in of else of  # what pack keeps by default
        return plan.needed_bytes(sizes(of), sizes(packed), traces, traces_per_file)

    table = {}
    for of in dict.fromkeys((*plan.KIND_SETS, kept)):
        each = sizes(of).scaled(1000 / traces)
        table[plan.kinds_name(of)] = {
            "raw": each.raw,
            "raw_float32": each.raw_wide,
            "shards": each.shards,
            "needed": needed(of),
            "fits": needed(of) <= free,
        }
    own = sizes(kept)
    report = {
        "model": vars(form),
        "traces": traces,
        "refused": len(refused),
        "prompt_tokens": int(prompts.sum()) * answers_per_question,
        "answer_tokens": rates.answer_tokens,
        "attention": plan.kinds_name(kept),
        "per_1000_traces": table,
        "raw": own.raw,
        "file_memory": round(own.memory * min(1, traces_per_file / traces)),
        "needed": needed(kept),
        "free": free,
        "fits": needed(kept) <= free,
        "traces_that_fit": min(traces, int(traces * free / needed(kept))),
        "probe": None
        if measured is None
        else {
            "traces": measured.traces,
            "seconds_per_trace": measured.seconds,
            "seconds": measured.seconds * traces,
            "wide": measured.wide,
        },
    }
    if as_json:
        print_json(report)
    else:
        _show(report, out, refused)
    if not report["fits"]:
        raise typer.Exit(1)


def _show(report: dict[str, Any], out: Path, refused: Sequence[Ask]) -> None:
    form, count = report["model"], report["traces"]
    _say(
        f"{count} traces of {form['layers']} layers, {form['heads']} heads, {form['features']}"
        f" features; prompts of {report['prompt_tokens'] / count:.1f} tokens, answers of"
        f" {report['answer_tokens']:.1f}{'' if report['probe'] else ' (the longest allowed)'}"
    )
    if refused:
        _say(
            f"  note: {len(refused)} questions cannot be asked and are not counted; the first:"
            f" {refused[0].refusal}"
        )
    _say(f"  {'per 1,000 traces':16} {'raw':>10} {'if float32':>10} {'shards':>10}   whole set")
    for name, row in report["per_1000_traces"].items():
        fits = "fits" if row["fits"] else "does not fit"
        _say(
            f"  {name:16} {_bytes(row['raw']):>10} {_bytes(row['raw_float32']):>10}"
            f" {_bytes(row['shards']):>10}   {_bytes(row['needed'])}, {fits}"
        )
    probed = report["probe"]
    if probed:
        _say(
            f"time: {probed['seconds_per_trace']:.3g} s a trace in a probe of {probed['traces']},"
            f" {_duration(probed['seconds'])} for all"
        )
        if probed["wide"]:
            _say(
                f"  note: {probed['wide']} of {probed['traces']} pass float16: float32 in raw files"
            )
    else:
        _say("time: not known without a probe (--probe 16)")
    _say(f"memory: {_bytes(report['file_memory'])} for the traces of one file (--traces-per-file)")
    _say(
        f"disk: --attention {report['attention']} needs {_bytes(report['needed'])} for raw files"
        f" and shards, {_bytes(report['free'])} are free at {out}:"
        f" {'it fits' if report['fits'] else 'it does not fit'}"
    )
    if not report["fits"]:
        others = [name for name, row in report["per_1000_traces"].items() if row["fits"]]
        _say(
            f"  what would: {'--attention ' + ' or '.join(others) if others else 'no size'};"
            f" --limit with {report['traces_that_fit']} traces; fewer --layers;"
            " --tokens answer or last"
        )


def _say(text: str) -> None:
    stdout.print(text, highlight=False, soft_wrap=True)


def _bytes(count: float) -> str:
    """Return a count of bytes as people say it: GB is 1e9."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
