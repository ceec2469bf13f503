"""``wdsbench train``."""

from __future__ import annotations

import os
from functools import partial

from wdsbench.cli.terminal import bar, print_json, say, stderr, stdout
from wdsbench.jobs.train import TrainJob, train

EXAMPLE = "wdsbench train shards/ --detector lstm --out runs/lstm"


def command(options: TrainJob, as_json: bool) -> None:
    """Train detectors on a data set; write results.json, metrics.jsonl, checkpoints and plots.

    On several GPUs or in several processes: torchrun --nproc-per-node N -m wdsbench train ...
    """
    from wdsbench.train.output import written_files
    from wdsbench.train.report import print_results
    from wdsbench.train.trials import print_search

    show = partial(print_search, console=stderr if as_json else stdout)
    results = train(options, progress=bar, on_search=show)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and int(os.environ.get("RANK", "0")):
        return  # only the first rank prints
    if as_json:
        print_json(results.as_json())
        return
    print_results(results, stdout)
    for path in written_files(options):
        say(f"  {path}", stderr)
