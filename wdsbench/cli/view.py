"""``wdsbench view``."""

from __future__ import annotations

from wdsbench.cli.terminal import print_json, say, stderr
from wdsbench.jobs.view import ViewJob, view


def view_command(options: ViewJob, as_json: bool) -> None:
    """Draw one trace: attention graph and map, norms of the states, a detector's scores.

    Example: wdsbench view shards/ --question hamahor-captain --layers 0,3,5 --out page.html
    """
    drawn = view(options)
    size = drawn.path.stat().st_size
    if as_json:
        print_json(
            {
                "out": str(drawn.path),
                "trace": drawn.trace,
                "layers": drawn.layers,
                "panels": drawn.panels,
                "bytes": size,
                "notes": drawn.notes,
            }
        )
        return
    say(f"{drawn.trace}: {drawn.description}")
    for note in drawn.notes:
        say(f"  note: {note}", stderr)
    say(f"  {drawn.path} ({size / 1e6:.1f} MB)", stderr)
