"""``wdsbench unpack``."""

from __future__ import annotations

from wdsbench.cli.terminal import bar, print_json, say
from wdsbench.jobs.pack import UnpackJob, unpack

EXAMPLE = "wdsbench unpack shards/ --out traces_back/ --format npz"


def command(options: UnpackJob, as_json: bool) -> None:
    """Write the traces of a data set as raw files, which pack reads."""
    report = unpack(options, progress=bar)
    if as_json:
        print_json(
            {
                "out": str(options.out),
                "samples": report.samples,
                "files": [path.name for path in report.files],
                "scores": None if report.scores is None else report.scores.name,
            }
        )
        return
    scores = "" if report.scores is None else f", scores in {report.scores.name}"
    say(f"{report.samples} traces in {len(report.files)} files{scores} -> {options.out}")
