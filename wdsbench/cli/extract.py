"""``wdsbench extract``: answers of a language model, with what went on inside it."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from wdsbench.cli.terminal import all_words, bar, print_json, stdout, words

if TYPE_CHECKING:
    from wdsbench.llm.extract import ExtractReport
    from wdsbench.llm.questions import Question
    from wdsbench.pack import PackOptions
    from wdsbench.shards.format.index import IndexFile

EXAMPLE = "wdsbench extract --model ./my-model --questions questions.jsonl --out traces_data/"


def command(
    model: str = typer.Option(..., help="Folder in the transformers format, or a hub name."),
    questions: str = typer.Option(
        ...,
        help="JSONL (question_id, question, references) or CSV, .gz too; or triviaqa, truthfulqa"
        " (through the package datasets).",
    ),
    out: Path = typer.Option(Path("traces_data"), help="Folder for batch_0001.pkl.gz, ..."),
    limit: int | None = typer.Option(None, help="Only the first so many questions."),
    batch_size: int = typer.Option(32, help="Questions asked at once."),
    max_new_tokens: int = typer.Option(32, help="Longest answer in tokens."),
    template: str = typer.Option(
        "{question}",
        help="Prompt, with {question} in it. It is taken as it is; in bash, $'...' writes a newline"
        r" as \n: $'Q: {question}\nA:'.",
    ),
    chat: bool = typer.Option(
        False,
        "--chat",
        help="Put the prompt into the tokenizer's chat template, as an instruct model expects it.",
    ),
    system: str | None = typer.Option(None, help="Of --chat: what the system says before."),
    decode: str = typer.Option("greedy", help="greedy, beam or sample."),
    beams: int = typer.Option(5, help="Of --decode beam: sequences kept at every step."),
    temperature: float = typer.Option(1.0, help="Of --decode sample."),
    top_p: float = typer.Option(
        1.0, help="Of --decode sample: the likeliest tokens that together reach this probability."
    ),
    seed: int = typer.Option(0, help="Of --decode sample."),
    answers_per_question: int = typer.Option(
        1, help="Of --decode sample: traces 0, 1, ... of every question."
    ),
    layers: str | None = typer.Option(None, help="Layers that are kept, from 0: 0,15 [all]."),
    tokens: str = typer.Option(
        "all",
        help="Tokens whose states are kept: all, those of the answer, or the last. What needs"
        " others (graphs, the prompt's last token) is then not available.",
    ),
    file_format: str = typer.Option(
        "pkl.gz", "--format", help="Of the trace files: pkl.gz, safetensors or npz."
    ),
    traces_per_file: int = typer.Option(500, help="Traces in one file."),
    dtype: str = typer.Option("float32", help="float32, float16 or bfloat16."),
    device: str | None = typer.Option(None, help="cpu, cuda, cuda:1, ... [cpu]"),
    device_map: str | None = typer.Option(
        None,
        help="Spread the layers over devices instead: auto, balanced, sequential (accelerate).",
    ),
    load_in: str | None = typer.Option(
        None, help="Quantise the weights: 8bit or 4bit (bitsandbytes)."
    ),
    revision: str | None = typer.Option(None, help="Branch, tag or commit on the hub."),
    trust_remote_code: bool = typer.Option(
        False, "--trust-remote-code", help="Run code that comes with the model; read it first."
    ),
    attention: str = typer.Option(
        "full",
        help="What is kept of attention: any of full (the maps), edges, heads, sketch, or none;"
        " edges, heads and sketch are made while the model runs and take little room.",
    ),
    edge_rule: str = typer.Option("top:0.35", help="Of edges: top:SHARE or threshold:WEIGHT."),
    head_threshold: float = typer.Option(0.05, help="Of heads: the least weight of an edge."),
    on_error: str = typer.Option(
        "record",
        help="A question that gives no trace: record it in failures.jsonl and go on, or fail.",
    ),
    journal: bool = typer.Option(
        True, help="Keep journal.jsonl, by which --resume goes on; writes every trace twice."
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Go on with what an earlier run with the same settings left."
    ),
    overwrite: bool = typer.Option(
        False, help="Replace trace files in the folder, and an unfinished data set in --shards."
    ),
    shards: Path | None = typer.Option(
        None,
        help="Pack every trace file into this folder as soon as it is whole, scored where there are"
        " references.",
    ),
    score_column: str | None = typer.Option(
        None,
        help="Of --shards: the measure that labels come from (exact_match, token_f1, rouge_l)"
        " [no labels; wdsbench relabel gives them later].",
    ),
    shard_mb: float = typer.Option(256.0, help="Of --shards: size at which one is closed, in MB."),
    keep_raw: bool = typer.Option(
        True,
        help="Of --shards: keep the trace files, or remove each once finished shards hold all of"
        " it.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one line of JSON."),
) -> None:
    """Ask a causal language model and keep states, attention and log-probabilities.

    A run that died goes on with --resume and writes the same files, and the same shards. Questions
    that give no trace are told of and stand in failures.jsonl; the exit code is 0 as long as there
    is any trace.
    """
    from wdsbench.files import nearest_folder
    from wdsbench.jobs.shard_sink import ShardSink
    from wdsbench.llm.extract import extract
    from wdsbench.llm.model import load_model
    from wdsbench.llm.named import load_questions
    from wdsbench.llm.options import ExtractOptions, ModelOptions

    kinds = all_words([attention])
    if not kinds:
        raise ValueError(f"--attention {attention!r} names nothing; none keeps nothing")
    kept = () if kinds == ["none"] else tuple(kinds)
    _check_shard_options(shards, score_column, keep_raw=keep_raw, journal=journal or resume)
    options = ExtractOptions(
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        traces_per_file=traces_per_file,
        attention=kept,
        edge_rule=edge_rule,
        head_threshold=head_threshold,
        template=template,
        chat=chat,
        system=system,
        decode=decode,
        beams=beams,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        answers_per_question=answers_per_question,
        layers=layer_numbers(layers),
        tokens=tokens,
        file_format=file_format,
        on_error=on_error,
        journal=journal,
        resume=resume,
        overwrite=overwrite,
    )
    model_options = ModelOptions(
        dtype=dtype,
        device=device,
        revision=revision,
        device_map=device_map,
        load_in=load_in,
        trust_remote_code=trust_remote_code,
    )
    for folder in (out, shards):
        if folder is not None:
            nearest_folder(folder)
    asked = load_questions(questions, limit)
    with ExitStack() as stack:
        sink = None
        if shards is not None:
            _require_references(asked, score_column)
            sink = ShardSink(
                shards,
                out,
                asked,
                pack_options(kept, edge_rule, head_threshold, score_column, shard_mb),
                keep_raw=keep_raw,
                resume=resume,
                overwrite=overwrite,
            )
            stack.enter_context(sink)
        language_model, tokenizer = load_model(model, model_options)
        report = extract(language_model, tokenizer, asked, out, options, sink=sink, progress=bar)
        if sink is not None:
            sink.tidy()
    index = None if sink is None else sink.index
    if as_json:
        _print_json(report, shards, index)
    else:
        several = answers_per_question > 1
        _print_words(report, out, max_new_tokens, shards, index, several=several)


def pack_options(
    kept: tuple[str, ...],
    edge_rule: str,
    head_threshold: float,
    score_column: str | None,
    shard_mb: float,
) -> PackOptions:
    """Return how traces are packed that were extracted with the same words."""
    from wdsbench.pack import PackOptions

    return PackOptions(
        score_column=score_column,
        missing_score="keep",
        # Of whole maps, what packing keeps by default.
        attention=("edges", "sketch") if "full" in kept else kept,
        edge_rule=edge_rule,
        head_threshold=head_threshold,
        shard_mb=shard_mb,
    )


def layer_numbers(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers of ``"0,15"``; None of None."""
    if text is None:
        return None
    try:
        return tuple(int(word) for word in words(text))
    except ValueError as error:
        raise ValueError(f"--layers {text!r} is no list of numbers; write 0,15") from error


def _check_shard_options(
    shards: Path | None, score_column: str | None, *, keep_raw: bool, journal: bool
) -> None:
    """Raise ValueError where options do not go together."""
    from wdsbench.llm.measures import MEASURES

    if shards is None and (score_column is not None or not keep_raw):
        raise ValueError("--score-column and --no-keep-raw are of --shards; give a folder there")
    if not keep_raw and not journal:
        raise ValueError(
            "--no-keep-raw needs the journal: without it nothing could go on where trace files are"
            " removed; leave --no-journal out"
        )
    if score_column is not None and score_column not in MEASURES:
        raise ValueError(
            f"--score-column {score_column!r} is not one of {', '.join(MEASURES)}; for other scores"
            " use wdsbench score, then relabel"
        )


def _require_references(asked: list[Question], score_column: str | None) -> None:
    if score_column is not None and not all(question.references for question in asked):
        raise ValueError(
            f"--score-column {score_column}: some questions have no reference to score against"
        )


def _print_json(report: ExtractReport, shards: Path | None, index: IndexFile | None) -> None:
    packed = None if index is None else index.shardlist
    print_json(
        {
            **dataclasses.asdict(report),
            "files": [str(file) for file in report.files],
            "shards": None if packed is None else str(shards),
            "samples": None if packed is None else sum(shard.nsamples for shard in packed),
            "bytes": None if packed is None else sum(shard.filesize for shard in packed),
        }
    )


def _print_words(
    report: ExtractReport,
    out: Path,
    max_new_tokens: int,
    shards: Path | None,
    index: IndexFile | None,
    *,
    several: bool,
) -> None:
    failed = "answers" if several else "questions"
    _say(
        f"{report.traces} traces of {report.tokens} tokens in"
        f" {len(report.files) + report.removed} files -> {out}"
    )
    for count, what in (
        (report.resumed, "of them were there from an earlier run"),
        (report.empty_answers, "answers were empty; their end token was kept"),
        (report.unfinished_answers, f"answers were cut at {max_new_tokens} tokens"),
        (report.wide_traces, "traces pass the range of float16 and were kept in float32"),
        (report.failed, f"{failed} gave no trace; {out / 'failures.jsonl'} says why"),
    ):
        if count:
            _say(f"  note: {count} {what}")
    if index is None:
        return
    samples = sum(shard.nsamples for shard in index.shardlist)
    size_mb = sum(shard.filesize for shard in index.shardlist) / 1e6
    _say(
        f"{samples} samples, {size_mb:.1f} MB in {len(index.shardlist)} shards -> {shards}"
        f"{f'; {report.removed} raw files removed' if report.removed else ''}"
    )
    unlabelled = sum(split.unlabelled for split in index.splits.values())
    if unlabelled:
        _say(f"  note: {unlabelled} samples have no label; wdsbench relabel gives them")


def _say(line: str) -> None:
    stdout.print(line, highlight=False, soft_wrap=True)
