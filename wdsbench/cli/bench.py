"""``wdsbench bench``: how fast data comes out of shards, beside its ceiling and competitors."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import typer

from wdsbench.cli.terminal import all_words, bar, print_json, stdout

EXAMPLE = "wdsbench bench stream --data bench-data/ --out stream.json --plot stream.png"

#: Scenario -> its ``--cases`` where none are asked for.
SCENARIOS = {"stream": "A,S,B", "graph": "all"}

CASES_HELP = (
    "What to measure, a comma list. stream [A,S,B]: rates of A (4,000 x [32, 4096]), S (64,000 x"
    " [32, 256]), B (150 whole traces, padded), B-last (the last token of each). open: seconds to"
    " the first batch."
    " cold: the first epoch from disk, beside dd. memory: what a shuffle buffer adds."
    " gpu: training on a CUDA device. graph [all]: C (320 traces of 32 attention graphs), edges"
    " (attention to edges), gnn (GINE + LSTM, forward and backward). Or all."
)


def command(
    scenario: str = typer.Argument(..., help=f"One of: {', '.join(SCENARIOS)}."),
    data: Path | None = typer.Option(
        None, help="Folder for the data, kept for the next run [a temporary one]."
    ),
    out: Path | None = typer.Option(None, help="File for the JSON."),
    plot: Path | None = typer.Option(None, help="File for a bar chart, .png or .svg."),
    cases: str | None = typer.Option(None, help=CASES_HELP),
    repeats: int = typer.Option(5, help="Repeats, of which the median counts."),
    scale: float = typer.Option(1.0, help="Share of the samples; for a quick look."),
    more_readers: bool = typer.Option(
        False, "--more-readers", help="A, S: also webdataset-w2 and pt-iterable-w2."
    ),
) -> None:
    """Measure a scenario; the last line on stdout is its JSON.

    Makes its data: 3 GB for A and for S, 4 GB for B, 2 GB for open, 0.4 GB for C.
    """
    from wdsbench.bench import parts
    from wdsbench.bench.part import Settings
    from wdsbench.bench.plot import check_plot_path, plot_parts
    from wdsbench.bench.report import as_json, print_part
    from wdsbench.files import write_json

    if scenario not in SCENARIOS:
        raise ValueError(f"scenario {scenario!r} is not one of {', '.join(SCENARIOS)}")
    parts_of = parts.SCENARIOS[scenario]()
    wanted = parts.named(all_words([SCENARIOS[scenario] if cases is None else cases]), parts_of)
    if not 0 < scale <= 1 or repeats < 1:
        raise ValueError(f"--scale {scale} must be in (0, 1] and --repeats {repeats} at least 1")
    if plot is not None:
        check_plot_path(plot)
    measured = []
    with tempfile.TemporaryDirectory() as temporary:
        settings = Settings(
            data=data or Path(temporary),
            repeats=repeats,
            scale=scale,
            more_readers=more_readers,
            progress=bar,
        )
        for measure in wanted:
            gc.collect()  # what the last part held would slow the forks of the next
            part = measure(settings)
            print_part(part, stdout)
            measured.append(part)
    report = as_json(scenario, measured, settings)
    if out is not None:
        write_json(out, report)
    if plot is not None:
        plot_parts(plot, measured)
    print_json(report)
