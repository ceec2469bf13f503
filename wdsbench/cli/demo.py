"""``wdsbench demo``: the main job, end to end, on the model that comes with the package."""

from __future__ import annotations

from pathlib import Path

import typer

from wdsbench.cli.terminal import bar, print_json, stderr, stdout

EXAMPLE = "wdsbench demo --out wdsbench-demo"


def command(
    out: Path = typer.Option(Path("wdsbench-demo"), help="Folder for everything it makes."),
    questions: int = typer.Option(6400, help="How many of the embedded questions are asked."),
    seed: int = typer.Option(0, help="Of training; same seed, same numbers."),
    fresh: bool = typer.Option(False, help="Do everything again, whatever is there."),
    as_json: bool = typer.Option(False, "--json", help="Print results.json instead of the table."),
) -> None:
    """Extract, score, pack, train and report on the embedded model, in a few minutes."""
    from wdsbench.demo.run import DemoOptions, run_demo
    from wdsbench.train.report import print_results

    def say(line: str) -> None:
        stderr.print(line, highlight=False, soft_wrap=True)

    outcome = run_demo(
        out, DemoOptions(questions=questions, seed=seed, fresh=fresh), say=say, progress=bar
    )
    if as_json:
        print_json(outcome.results.as_json())
        return
    print_results(outcome.results, stdout)
    stdout.print("Where everything lies:")
    for path, what in outcome.files:
        stdout.print(f"  {path!s:42} {what}", highlight=False, soft_wrap=True)
