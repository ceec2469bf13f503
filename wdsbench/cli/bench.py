"""``wdsbench bench``: reading rates next to their ceiling and to other readers."""

from __future__ import annotations

import gc
import tempfile
from dataclasses import dataclass
from pathlib import Path

from wdsbench.cli.terminal import bar, print_json, stdout, words
from wdsbench.options import option

#: Scenario -> its default ``--cases``.
SCENARIOS = {"stream": "A,S,B", "graph": "all", "images": "all"}

CASES_HELP = (
    "What to measure, a comma list. stream [A,S,B]: rates of A (4,000 x [32, 4096]), S (64,000 x"
    " [32, 256]), B (150 whole traces, padded), B-last (the last token of each). open: seconds to"
    " the first batch."
    " cold: the first epoch from disk, next to dd. memory: the memory of a shuffle buffer."
    " gpu: training on a CUDA device. graph [all]: C (320 traces of 32 attention graphs), edges"
    " (attention to edges), gnn (GINE + LSTM, forward and backward). images [all]: 50, 200, 800"
    " files next to reading them one by one; memory of training; pack. Or all."
)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of the command."""

    scenario: str = option(help=f"One of: {', '.join(SCENARIOS)}.", argument=True)
    data: Path | None = option(
        None, "Folder for the data, which is kept for the next run [a temporary one]."
    )
    out: Path | None = option(None, "File for the JSON.")
    plot: Path | None = option(None, "File for a bar chart, .png or .svg.")
    cases: str | None = option(None, CASES_HELP)
    repeats: int = option(5, "Repeats; the median counts.")
    scale: float = option(1.0, "Share of the samples, for a short trial.")
    more_readers: bool = option(False, "A, S: also measure webdataset-w2 and pt-iterable-w2.")

    def __post_init__(self) -> None:
        if self.scenario not in SCENARIOS:
            raise ValueError(f"scenario {self.scenario!r} is not one of {', '.join(SCENARIOS)}")
        if not 0 < self.scale <= 1:
            raise ValueError(f"--scale is {self.scale}; must be above 0 and at most 1.")
        if self.repeats < 1:
            raise ValueError(f"--repeats is {self.repeats}; must be at least 1.")


def bench_command(options: BenchOptions) -> None:
    """Measure a scenario; the last line on stdout is its JSON.

    Creates its data: 3 GB for A and for S, 4 GB for B, 2 GB for open, 0.4 GB for C, 1 GB for
    images.

    Example: wdsbench bench stream --data bench-data/ --out stream.json --plot stream.png
    """
    from wdsbench.bench import parts
    from wdsbench.bench.part import Settings
    from wdsbench.bench.report import as_json, check_plot_path, plot_parts, print_part
    from wdsbench.files import write_json

    cases = SCENARIOS[options.scenario] if options.cases is None else options.cases
    wanted = parts.named(words(cases), parts.SCENARIOS[options.scenario]())
    if options.plot is not None:
        check_plot_path(options.plot)
    measured = []
    with tempfile.TemporaryDirectory() as temporary:
        settings = Settings(
            data=options.data or Path(temporary),
            repeats=options.repeats,
            scale=options.scale,
            more_readers=options.more_readers,
            progress=bar,
        )
        for measure in wanted:
            gc.collect()  # memory held by the last part would slow the forks of the next
            part = measure(settings)
            print_part(part, stdout)
            measured.append(part)
    report = as_json(options.scenario, measured, settings)
    if options.out is not None:
        write_json(options.out, report)
    if options.plot is not None:
        plot_parts(options.plot, measured)
    print_json(report)
