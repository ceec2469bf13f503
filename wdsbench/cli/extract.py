"""``wdsbench extract``: answers of a language model, with what went on inside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from wdsbench.cli.terminal import all_words, bar, print_json, stdout, words

if TYPE_CHECKING:
    from wdsbench.llm.extract import ExtractReport
    from wdsbench.llm.questions import Question
    from wdsbench.pack import PackReport
    from wdsbench.traces.attention import AttentionRules

SCORES_NAME = "ground_truth_scores.csv"
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
    template: str = typer.Option("{question}", help="Prompt, with {question} in it."),
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
    tokens: str = typer.Option("all", help="Tokens whose states are kept: all, or the last one."),
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
    overwrite: bool = typer.Option(False, help="Replace trace files in the folder."),
    shards: Path | None = typer.Option(
        None, help="Pack the traces into this folder at the end, scored where there are references."
    ),
    score_column: str | None = typer.Option(
        None,
        help="Of --shards: the measure that labels come from (exact_match, token_f1, rouge_l)"
        " [no labels; wdsbench relabel gives them later].",
    ),
    keep_raw: bool = typer.Option(
        True, help="Of --shards: keep the trace files once they are packed."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one line of JSON."),
) -> None:
    """Ask a causal language model and keep states, attention and log-probabilities.

    A run that died goes on with --resume and writes the same files. Questions that give no trace
    are told of and stand in failures.jsonl; the exit code is 0 as long as there is any trace.
    """
    from wdsbench.llm.decode import Decoding
    from wdsbench.llm.extract import extract
    from wdsbench.llm.measures import MEASURES
    from wdsbench.llm.model import load_model
    from wdsbench.llm.named import load_questions
    from wdsbench.traces.attention import AttentionRules

    kinds = all_words([attention])
    if not kinds:
        raise ValueError(f"--attention {attention!r} names nothing; none keeps nothing")
    if shards is None and (score_column is not None or not keep_raw):
        raise ValueError("--score-column and --no-keep-raw are of --shards; give a folder there")
    if shards is not None and (shards / "index.json").exists():
        raise ValueError(f"--shards {shards} holds a data set already; choose another folder")
    if score_column is not None and score_column not in MEASURES:
        raise ValueError(
            f"--score-column {score_column!r} is not one of {', '.join(MEASURES)}; for other scores"
            " use wdsbench score, then relabel"
        )
    decoding = Decoding(decode, beams, temperature, top_p, seed)
    chosen = layer_numbers(layers)
    asked = load_questions(questions, limit)
    if score_column is not None and not all(question.references for question in asked):
        raise ValueError(
            f"--score-column {score_column}: some questions have no reference to score against"
        )
    language_model, tokenizer = load_model(
        model,
        dtype,
        device,
        revision=revision,
        device_map=device_map,
        load_in=load_in,
        trust_remote_code=trust_remote_code,
    )
    report = extract(
        language_model,
        tokenizer,
        asked,
        out,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        traces_per_file=traces_per_file,
        attention=() if kinds == ["none"] else kinds,
        edge_rule=edge_rule,
        head_threshold=head_threshold,
        template=template,
        decoding=decoding,
        answers_per_question=answers_per_question,
        layers=chosen,
        tokens=tokens,
        file_format=file_format,
        on_error=on_error,
        journal=journal,
        resume=resume,
        overwrite=overwrite,
        progress=bar,
    )
    packed = None
    if shards is not None:
        rules = AttentionRules(() if kinds == ["none"] else tuple(kinds), edge_rule, head_threshold)
        packed = _pack(report, asked, out, shards, rules, score_column)
        if not keep_raw:
            _remove_raw(report, out)
    if as_json:
        print_json(
            {
                **dataclasses.asdict(report),
                "files": [str(file) for file in report.files] if keep_raw else [],
                "shards": None if packed is None else str(shards),
                "samples": None if packed is None else packed.samples,
            }
        )
        return
    stdout.print(
        f"{report.traces} traces of {report.tokens} tokens in {len(report.files)} files -> {out}",
        highlight=False,
        soft_wrap=True,
    )
    for count, what in (
        (report.resumed, "of them were there from an earlier run"),
        (report.empty_answers, "answers were empty; their end token was kept"),
        (report.unfinished_answers, f"answers were cut at {max_new_tokens} tokens"),
        (report.wide_traces, "traces pass the range of float16 and were kept in float32"),
        (report.failed, f"questions gave no trace; {out / 'failures.jsonl'} says why"),
    ):
        if count:
            stdout.print(f"  note: {count} {what}", highlight=False, soft_wrap=True)
    if packed is not None:
        stdout.print(
            f"{packed.samples} samples, {packed.bytes_written / 1e6:.1f} MB -> {shards}"
            f"{'' if keep_raw else '; raw files removed'}",
            highlight=False,
            soft_wrap=True,
        )
        if packed.unlabelled:
            stdout.print(
                f"  note: {packed.unlabelled} samples have no label; wdsbench relabel gives them",
                highlight=False,
                soft_wrap=True,
            )


def _pack(
    report: ExtractReport,
    asked: list[Question],
    out: Path,
    shards: Path,
    rules: AttentionRules,
    score_column: str | None,
) -> PackReport:
    """Score and pack what was extracted."""
    from wdsbench.llm.score import score_traces
    from wdsbench.pack import PackOptions, pack

    files = [str(file) for file in report.files]
    scores = out / SCORES_NAME
    if all(question.references for question in asked):
        score_traces(files, asked, scores, bar)
    options = PackOptions(
        score_column=score_column,
        missing_score="keep",
        # Of whole maps, what packing keeps by default.
        attention=("edges", "sketch") if "full" in rules.kinds else rules.kinds,
        edge_rule=rules.edge_rule,
        head_threshold=rules.head_threshold,
    )
    return pack(
        files,
        shards,
        scores=None if score_column is None else scores,
        options=options,
        progress=bar,
    )


def _remove_raw(report: ExtractReport, out: Path) -> None:
    """Remove the trace files, and the journal, which speaks of them."""
    from wdsbench.llm.journal import JOURNAL_NAME

    (out / JOURNAL_NAME).unlink(missing_ok=True)
    for file in report.files:
        file.unlink()


def layer_numbers(text: str | None) -> list[int] | None:
    """Return the numbers of ``"0,15"``; None of None."""
    if text is None:
        return None
    try:
        return [int(word) for word in words(text)]
    except ValueError as error:
        raise ValueError(f"--layers {text!r} is no list of numbers; write 0,15") from error
