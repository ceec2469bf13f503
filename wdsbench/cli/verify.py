"""``wdsbench verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from wdsbench.cli.terminal import bar, print_json, print_table, say, say_rest
from wdsbench.jobs.verify import Verified, VerifyJob, verify

if TYPE_CHECKING:
    from wdsbench.llm.recompute import RecomputeReport
    from wdsbench.shards.check.repair import RepairReport
    from wdsbench.shards.check.verify import VerifyReport
    from wdsbench.traces.verify import RawReport

#: Problems that are printed; --json lists all.
_SHOWN = 100


def verify_command(options: VerifyJob, as_json: bool) -> None:
    """Check shards against their index, or raw traces, and list every problem; code 1 if any.

    Example: wdsbench verify shards/ --repair --out repaired/
    """
    result = verify(options, progress=bar)
    if not isinstance(result, Verified):
        _show_repair(result, options, as_json)
        return
    again = result.recomputed
    if as_json:
        recompute = None if again is None else again.as_json()
        print_json({"kind": result.kind, **result.report.as_json(), "recompute": recompute})
    else:
        _show(result.report)
        if again is not None:
            _show_recompute(again)
        elif options.recompute is not None:
            say("  note: nothing was recomputed, because there are problems")
    if not result.sound:
        raise typer.Exit(1)


def _show_repair(report: RepairReport, options: VerifyJob, as_json: bool) -> None:
    from wdsbench.shards.check.repair import LOST_NAME

    assert options.out is not None
    if as_json:
        names = ("key", "question_id", "reason")
        print_json(
            {
                "kind": "repair",
                "source": str(options.sources[0]),
                "out": str(options.out),
                "samples": report.samples,
                "lost": [dict(zip(names, line, strict=True)) for line in report.lost],
                "damaged_shards": report.damaged_shards,
            }
        )
        return
    say(f"{report.samples} samples are intact, {len(report.lost)} are lost -> {options.out}")
    for key, question, reason in report.lost[:_SHOWN]:
        say(f"  lost: {key}, question {question}: {reason}")
    if report.lost:
        say(f"  note: {options.out / LOST_NAME} lists all lost samples")


def _show(report: VerifyReport | RawReport) -> None:
    from wdsbench.shards.check.verify import VerifyReport

    if isinstance(report, VerifyReport):
        _show_dataset(report)
        notes = list(report.notes)
    else:
        say(
            f"{report.traces} good traces of {report.questions} questions,"
            f" {report.tokens} tokens, in {report.files} files: {_verdict(report)}"
        )
        if not report.sound:
            say(f"  {report.bad_traces} bad traces, {report.bad_files} bad files")
        notes = [f"{count} traces: {remark}" for remark, count in report.remarks.items()]
    for problem in report.problems[:_SHOWN]:
        say(f"  {problem}")
    say_rest(len(report.problems), _SHOWN)
    for note in notes:
        say(f"  note: {note}")


def _show_dataset(report: VerifyReport) -> None:
    how = "sizes and headers only" if report.fast else f"{report.bytes_read / 1e6:.1f} MB read"
    say(f"{report.samples} samples in {report.shards} shards, {how}: {_verdict(report)}")
    kinds: dict[str, list[str]] = {}
    for problem in report.problems:
        kinds.setdefault(problem.kind, []).append(problem.shard or "")
    print_table(
        "",
        ("problem", "times", "files", "first in"),
        [(kind, len(found), len(set(found)), found[0]) for kind, found in kinds.items()],
    )
    if report.damaged_samples:
        say(f"  {report.damaged_samples} samples are damaged; --repair keeps the others")


def _verdict(report: VerifyReport | RawReport) -> str:
    count = len(report.problems)
    return f"{count} problem{'s' if count > 1 else ''}" if count else "sound"


def _show_recompute(report: RecomputeReport) -> None:
    verdict = "as stored" if report.sound else f"{len(report.wrong)} are not as stored"
    if not report.deviations:
        verdict = "nothing could be compared"
    say(f"{report.traces} traces recomputed: {verdict}")
    print_table(
        "",
        ("values", "layer", "largest deviation", "limit", "in"),
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
        say(f"  not as stored: {place}")
    for note in report.notes:
        say(f"  note: {note}")
