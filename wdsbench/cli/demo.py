"""``wdsbench demo``."""

from __future__ import annotations

from functools import partial

from wdsbench.cli.terminal import bar, print_json, say, stderr, stdout
from wdsbench.demo import DemoOptions


def demo_command(options: DemoOptions, as_json: bool) -> None:
    """Extract, score, pack, train and report on the embedded model, in a few minutes.

    Example: wdsbench demo --out wdsbench-demo
    """
    from wdsbench.demo.run import run_demo
    from wdsbench.train.report import print_results

    outcome = run_demo(options, say=partial(say, console=stderr), progress=bar)
    if as_json:
        print_json(outcome.results.as_json())
        return
    print_results(outcome.results, stdout)
    say("Files:")
    for path, description in outcome.files:
        say(f"  {path!s:42} {description}")
