"""``wdsbench score``: how right the answers in raw traces are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import typer

from wdsbench.cli.terminal import bar, print_json, stdout

EXAMPLE = "wdsbench score --traces 'traces_data/*.pkl*' --questions questions.jsonl"


def command(
    traces: list[str] = typer.Option(
        ..., help="Raw trace files: a path or a quoted pattern; may be given again."
    ),
    questions: Path = typer.Option(
        ..., help="JSONL (question_id, question, references) or CSV; .gz too."
    ),
    out: Path = typer.Option(Path("ground_truth_scores.csv"), help="The CSV to write."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one line of JSON."),
) -> None:
    """Score answers by normalised exact match and token F1 against the questions' references."""
    from wdsbench.llm.questions import read_questions
    from wdsbench.llm.score import score_traces

    report = score_traces(traces, read_questions(questions), out, progress=bar)
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    stdout.print(
        f"{report.scored} answers: exact match {report.exact_match:.3f},"
        f" token F1 {report.token_f1:.3f} -> {out}",
        highlight=False,
        soft_wrap=True,
    )
    for count, what in (
        (report.traces_without_question, "traces have no question in the file and were left out"),
        (report.questions_without_trace, "questions have no trace"),
    ):
        if count:
            stdout.print(f"  note: {count} {what}", highlight=False, soft_wrap=True)
