"""``wdsbench extract``: answers of a language model, with what went on inside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import typer

from wdsbench.cli.terminal import all_words, bar, print_json, stdout

EXAMPLE = "wdsbench extract --model ./my-model --questions questions.jsonl --out traces_data/"


def command(
    model: str = typer.Option(..., help="Folder in the transformers format, or a hub name."),
    questions: Path = typer.Option(
        ..., help="JSONL (question_id, question, references) or CSV; .gz too."
    ),
    out: Path = typer.Option(Path("traces_data"), help="Folder for batch_0001.pkl.gz, ..."),
    limit: int | None = typer.Option(None, help="Only the first so many questions."),
    batch_size: int = typer.Option(32, help="Questions asked at once."),
    max_new_tokens: int = typer.Option(32, help="Longest answer in tokens."),
    template: str = typer.Option("{question}", help="Prompt, with {question} in it."),
    traces_per_file: int = typer.Option(500, help="Traces in one file."),
    dtype: str = typer.Option("float32", help="float32, float16 or bfloat16."),
    device: str = typer.Option("cpu", help="cpu, cuda, cuda:1, ..."),
    attention: str = typer.Option(
        "full",
        help="What is kept of attention: any of full (the maps), edges, heads, sketch, or none;"
        " edges, heads and sketch are made while the model runs and take little room.",
    ),
    edge_rule: str = typer.Option("top:0.35", help="Of edges: top:SHARE or threshold:WEIGHT."),
    head_threshold: float = typer.Option(0.05, help="Of heads: the least weight of an edge."),
    overwrite: bool = typer.Option(False, help="Replace trace files in the folder."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one line of JSON."),
) -> None:
    """Ask a causal language model greedily and keep states, attention and log-probabilities."""
    from wdsbench.llm.extract import extract
    from wdsbench.llm.model import load_model
    from wdsbench.llm.questions import read_questions

    kinds = all_words([attention])
    if not kinds:
        raise ValueError(f"--attention {attention!r} names nothing; none keeps nothing")
    asked = read_questions(questions, limit)
    language_model, tokenizer = load_model(model, dtype, device)
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
        overwrite=overwrite,
        progress=bar,
    )
    if as_json:
        print_json({**dataclasses.asdict(report), "files": [str(file) for file in report.files]})
        return
    stdout.print(
        f"{report.traces} traces of {report.tokens} tokens in {len(report.files)} files -> {out}",
        highlight=False,
        soft_wrap=True,
    )
    for count, what in (
        (report.empty_answers, "answers were empty; their end token was kept"),
        (report.unfinished_answers, f"answers were cut at {max_new_tokens} tokens"),
        (report.wide_traces, "traces pass the range of float16 and were kept in float32"),
    ):
        if count:
            stdout.print(f"  note: {count} {what}", highlight=False, soft_wrap=True)
