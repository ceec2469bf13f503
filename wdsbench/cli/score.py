"""``wdsbench score``."""

from __future__ import annotations

import dataclasses
import math

from wdsbench.cli.terminal import bar, print_json, say, say_notes
from wdsbench.jobs.score import ScoreJob, score


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
