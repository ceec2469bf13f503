"""``wdsbench unpack``: a data set back to raw traces."""

from __future__ import annotations

from pathlib import Path

import typer

from wdsbench.cli.terminal import bar, print_json, stdout

EXAMPLE = "wdsbench unpack shards/ --out traces_back/ --format npz"


def command(
    data: Path = typer.Argument(..., metavar="DATASET", help="Folder of the data set."),
    out: Path = typer.Option(..., help="Folder of the trace files, one for each shard."),
    file_format: str = typer.Option("npz", "--format", help="npz or pkl."),
    split: str | None = typer.Option(None, help="train, val or test; default: all."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one line of JSON."),
) -> None:
    """Write the traces of a data set as raw files, which pack reads again."""
    from wdsbench.pack.unpack import unpack

    report = unpack(data, out, file_format=file_format, split=split, progress=bar)
    if as_json:
        print_json(
            {
                "out": str(out),
                "samples": report.samples,
                "files": [path.name for path in report.files],
                "scores": None if report.scores is None else report.scores.name,
            }
        )
        return
    scores = "" if report.scores is None else f", scores in {report.scores.name}"
    stdout.print(
        f"{report.samples} traces in {len(report.files)} files{scores} -> {out}",
        highlight=False,
        soft_wrap=True,
    )
