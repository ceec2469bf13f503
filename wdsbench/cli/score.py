"""``wdsbench score``: how right the answers in raw traces are."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import typer

from wdsbench.cli.terminal import bar, print_json, stdout

EXAMPLE = "wdsbench score --traces 'traces_data/*.pkl*' --questions questions.jsonl"


def command(
    traces: list[str] = typer.Option(
        ..., help="Raw trace files: a path or a quoted pattern; may be given again."
    ),
    questions: str = typer.Option(
        ...,
        help="JSONL (question_id, question, references) or CSV, .gz too; or triviaqa, truthfulqa.",
    ),
    out: Path = typer.Option(Path("ground_truth_scores.csv"), help="The CSV to write."),
    model: list[str] = typer.Option(
        [],
        help="A sequence-classification or regression checkpoint (BLEURT and its like) that scores"
        " too: PATH, or COLUMN=PATH; may be given again.",
    ),
    model_label: str | None = typer.Option(
        None, help="Of a classifier: the class that means right [entailment, correct, ...]."
    ),
    device: str = typer.Option("cpu", help="Of --model: cpu, cuda, ..."),
    abstention: list[str] = typer.Option(
        [],
        help="A regular expression of answers that give none, beside those known (I don't know,"
        " no comment, nothing at all, ...); may be given again.",
    ),
    abstention_score: str = typer.Option(
        "keep",
        help="What abstentions score: keep (as measured), none (no score; pack --missing-score"
        " drop leaves them out) or a number.",
    ),
    threshold: float = typer.Option(
        0.5, help="A score below it means hallucinated; for agreement only."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one line of JSON."),
) -> None:
    """Score answers against the questions' references, by several measures side by side.

    Exact match, token F1 and ROUGE-L always, the best over the references; every --model is one
    column more. The column abstained marks answers that give none; it is no score. Where a question
    has several answers, a column trace says which, as pack and relabel read it.
    """
    from wdsbench.files import require_file_place
    from wdsbench.llm.named import load_questions
    from wdsbench.llm.options import ScoreOptions
    from wdsbench.llm.score import score_traces

    options = ScoreOptions(
        model=tuple(model),
        model_label=model_label,
        device=device,
        abstention=tuple(abstention),
        abstention_score=abstention_score,
        threshold=threshold,
    )
    require_file_place(out)
    report = score_traces(traces, load_questions(questions), out, options, progress=bar)
    cut = report.cut
    if as_json:
        means = {name: None if math.isnan(mean) else mean for name, mean in report.means.items()}
        print_json({**dataclasses.asdict(report), "means": means, **means})
        return
    _say(
        f"{report.scored} answers: exact match {report.exact_match:.3f},"
        f" token F1 {report.token_f1:.3f} -> {out}"
    )
    for name, mean in report.means.items():
        _say(f"  {name:14} mean {mean:.3f}")
    if report.agreement:
        _say(f"  agreement ({report.scored - report.abstained} answers; kappa at {threshold:g}):")
    for pair in report.agreement:
        _say(
            f"    {pair.first + ' / ' + pair.second:28} Pearson {_shown(pair.pearson)}, Spearman"
            f" {_shown(pair.spearman)}, kappa {_shown(pair.kappa)}"
        )
    for count, what in (
        (
            report.abstained,
            f"answers abstain; their scores: {abstention_score} (--abstention-score)",
        ),
        (report.traces_without_question, "traces have no question in the file and were left out"),
        (report.questions_without_trace, "questions have no trace"),
        *((number, f"pairs were too long for {name} and cut") for name, number in cut.items()),
    ):
        if count:
            _say(f"  note: {count} {what}")


def _say(text: str) -> None:
    stdout.print(text, highlight=False, soft_wrap=True)


def _shown(value: float | None) -> str:
    return "  -  " if value is None else f"{value:5.2f}"
