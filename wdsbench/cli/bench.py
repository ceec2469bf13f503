"""``wdsbench bench``: how fast data comes out of shards, beside its ceiling and competitors."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import typer

from wdsbench.cli.terminal import all_words, bar, print_json, stdout

EXAMPLE = "wdsbench bench stream --data bench-data/ --out stream.json"

SCENARIOS = ("stream",)


def command(
    scenario: str = typer.Argument(..., help=f"One of: {', '.join(SCENARIOS)}."),
    data: Path | None = typer.Option(
        None, help="Folder for the data, kept for the next run [a temporary one]."
    ),
    out: Path | None = typer.Option(None, help="File for the JSON."),
    cases: str = typer.Option("A,S", help="Shapes of data, a comma list."),
    repeats: int = typer.Option(5, help="Repeats, of which the median counts."),
    scale: float = typer.Option(1.0, help="Share of the samples; for a quick look."),
) -> None:
    """Measure a scenario; the last line on stdout is its JSON. Makes 3 GB of data a shape."""
    from wdsbench.bench.data import SHAPES, make_data
    from wdsbench.bench.report import as_json, print_cases
    from wdsbench.bench.stream import ratios, run_stream
    from wdsbench.train.files import write_json

    if scenario not in SCENARIOS:
        raise ValueError(f"scenario {scenario!r} is not one of {', '.join(SCENARIOS)}")
    names = all_words([cases])
    unknown = [name for name in names if name not in SHAPES]
    if unknown or not names:
        raise ValueError(f"--cases {cases!r}: not a list of {', '.join(SHAPES)}")
    if not 0 < scale <= 1 or repeats < 1:
        raise ValueError(f"--scale {scale} must be in (0, 1] and --repeats {repeats} at least 1")
    with tempfile.TemporaryDirectory() as temporary:
        parts = {}
        for name in names:
            full = SHAPES[name]
            samples = max(full.batch_size, int(full.samples * scale))
            shape = dataclasses.replace(full, samples=samples)
            folder = (data or Path(temporary)) / f"{name}-{samples}"
            make_data(shape, folder, bar)
            results = run_stream(shape, folder, repeats=repeats, progress=bar)
            title = (
                f"{name}: {samples} x [{shape.layers}, {shape.features}], batch {shape.batch_size}"
            )
            print_cases(title, results, stdout)
            parts[name] = (results, ratios(results))
    report = as_json(scenario, parts)
    if out is not None:
        write_json(out, report)
    print_json(report)
