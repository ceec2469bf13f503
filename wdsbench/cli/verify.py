"""``wdsbench verify``: is what is stored whole, and what it says it is?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from wdsbench.cli.sources import names_shards
from wdsbench.cli.terminal import all_words, bar, print_json, stdout

if TYPE_CHECKING:
    from wdsbench.llm.recompute import RecomputeReport
    from wdsbench.shards.check.verify import VerifyReport
    from wdsbench.traces.verify import RawReport

EXAMPLE = "wdsbench verify shards/ --repair --out repaired/"

#: Problems that are shown to people; --json lists all.
_SHOWN = 100


def command(
    sources: list[str] = typer.Argument(
        ..., help="Folder of a data set, tar files, or raw traces (a path or quoted pattern)."
    ),
    fast: bool = typer.Option(False, help="Data set: only sizes, headers and the table."),
    repair: bool = typer.Option(False, help="Data set: write what is whole of it to --out."),
    out: Path | None = typer.Option(None, help="Of --repair: folder of the new data set."),
    recompute: int | None = typer.Option(
        None, help="Also run so many random traces again with --model, and compare."
    ),
    model: str | None = typer.Option(None, help="The model that made the traces."),
    dtype: str = typer.Option("float32", help="Its precision then: float32, float16, bfloat16."),
    device: str = typer.Option("cpu", help="cpu, cuda, cuda:1, ..."),
    layers: str | None = typer.Option(
        None, help="Layers that were kept, as 0,15,31 [those that the traces name, else all]."
    ),
    seed: int = typer.Option(0, help="Of the choice of traces."),
    threads: int | None = typer.Option(
        None, help="Shards checked at a time [usable cores, at most 8]."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one line of JSON."),
) -> None:
    """Check shards against their index, or raw traces, and list every problem; code 1 if any."""
    shards = names_shards(sources)
    if repair != (out is not None):
        raise ValueError("--repair and --out go together: the damaged data set is never changed")
    if (recompute is None) != (model is None):
        raise ValueError("--recompute N and --model M go together")
    if threads is None:
        from wdsbench.cores import usable_cores

        threads = min(usable_cores(), 8)
    if threads < 1:
        raise ValueError(f"--threads {threads}; allowed are 1 and more")
    if out is not None:
        if not shards or len(sources) > 1 or fast or recompute is not None:
            raise ValueError("--repair takes one data set, and neither --fast nor --recompute")
        _repair(Path(sources[0]), out, as_json)
        return
    report = _verified(sources, shards, fast, threads)
    again: RecomputeReport | None = None
    if recompute is not None and model is not None and report.sound:
        chosen = None if layers is None else [int(word) for word in all_words([layers])]
        again = _recomputed(sources, shards, recompute, seed, model, dtype, device, chosen)
    if as_json:
        found = {"kind": "dataset" if shards else "raw", **report.as_json()}
        print_json({**found, "recompute": None if again is None else again.as_json()})
    else:
        _show(report)
        if again is not None:
            _show_recompute(again)
        elif recompute is not None:
            _say("  note: nothing was recomputed, since there are problems")
    if not report.sound or (again is not None and not again.sound):
        raise typer.Exit(1)


def _verified(
    sources: list[str], shards: bool, fast: bool, threads: int
) -> VerifyReport | RawReport:
    if not shards:
        from wdsbench.traces.verify import verify_raw

        if fast:
            raise ValueError("--fast is for data sets; raw traces have no index to be checked by")
        return verify_raw(sources, progress=bar)
    from wdsbench.shards.check.verify import tar_paths, verify_dataset, verify_tars

    if Path(sources[0]).is_dir():
        return verify_dataset(Path(sources[0]), fast=fast, threads=threads, progress=bar)
    return verify_tars(tar_paths(sources), fast=fast, threads=threads, progress=bar)


def _recomputed(
    sources: list[str],
    shards: bool,
    count: int,
    seed: int,
    model: str,
    dtype: str,
    device: str,
    layers: list[int] | None,
) -> RecomputeReport:
    from wdsbench.llm.model import load_model
    from wdsbench.llm.recompute import recompute
    from wdsbench.llm.stored import pick_from_dataset, pick_from_raw
    from wdsbench.shards.read.open import open_index

    if shards:
        index = open_index(sources[0] if len(sources) == 1 else sources)
        traces = pick_from_dataset(index, count, seed)
    else:
        traces = pick_from_raw(sources, count, seed)
    return recompute(traces, *load_model(model, dtype, device), layers=layers, progress=bar)


def _repair(folder: Path, out: Path, as_json: bool) -> None:
    from wdsbench.shards.check.repair import LOST_NAME, repair_dataset

    report = repair_dataset(folder, out, progress=bar)
    if as_json:
        names = ("key", "question_id", "reason")
        lost = [dict(zip(names, line, strict=True)) for line in report.lost]
        print_json(
            {
                "kind": "repair",
                "source": str(folder),
                "out": str(out),
                "samples": report.samples,
                "lost": lost,
                "damaged_shards": report.damaged_shards,
            }
        )
        return
    _say(f"{report.samples} samples are whole, {len(report.lost)} are lost -> {out}")
    for key, question, reason in report.lost[:_SHOWN]:
        _say(f"  lost: {key}, question {question}: {reason}")
    if report.lost:
        _say(f"  note: {out / LOST_NAME} lists all lost samples")


def _show(report: VerifyReport | RawReport) -> None:
    """Print a report for people."""
    from wdsbench.shards.check.verify import VerifyReport

    if isinstance(report, VerifyReport):
        how = "sizes and headers only" if report.fast else f"{report.bytes_read / 1e6:.1f} MB read"
        _say(f"{report.samples} samples in {report.shards} shards, {how}: {_verdict(report)}")
        kinds: dict[str, list[str]] = {}
        for problem in report.problems:
            kinds.setdefault(problem.kind, []).append(problem.shard or "")
        _print_table(
            ("problem", "times", "files", "first in"),
            [
                (kind, str(len(found)), str(len(set(found))), found[0])
                for kind, found in kinds.items()
            ],
        )
        if report.damaged_samples:
            _say(f"  {report.damaged_samples} samples are damaged; --repair keeps the others")
    else:
        _say(
            f"{report.traces} good traces of {report.questions} questions,"
            f" {report.tokens} tokens, in {report.files} files: {_verdict(report)}"
        )
        if not report.sound:
            _say(f"  {report.bad_traces} bad traces, {report.bad_files} bad files")
    for line in [problem.text for problem in report.problems[:_SHOWN]]:
        _say(f"  {line}")
    if len(report.problems) > _SHOWN:
        _say(f"  and {len(report.problems) - _SHOWN} more; --json lists all")
    notes = report.notes if isinstance(report, VerifyReport) else [
        f"{count} traces: {remark}" for remark, count in report.remarks.items()
    ]  # fmt: skip
    for note in notes:
        _say(f"  note: {note}")


def _verdict(report: VerifyReport | RawReport) -> str:
    count = len(report.problems)
    return "sound" if not count else f"{count} problem{'s' if count > 1 else ''}"


def _show_recompute(report: RecomputeReport) -> None:
    verdict = "as stored" if report.sound else f"{len(report.wrong)} are not as stored"
    if not report.deviations:
        verdict = "nothing could be compared"
    _say(f"{report.traces} traces run again: {verdict}")
    _print_table(
        ("of", "layer", "largest deviation", "allowed", "in"),
        [
            (
                found.kind,
                "" if found.layer is None else str(found.layer),
                f"{found.deviation:.3g}",
                f"{found.allowed:.3g}{'' if found.ratio <= 1 else '  EXCEEDED'}",
                f"{found.question_id}, token {found.token}",
            )
            for found in report.deviations
        ],
    )
    for place in report.wrong[:_SHOWN]:
        _say(f"  not as stored: {place}")
    for note in report.notes:
        _say(f"  note: {note}")


def _print_table(names: Iterable[str], rows: list[Any]) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    stdout.print(table)


def _say(line: str) -> None:
    stdout.print(line, highlight=False, soft_wrap=True, markup=False)
