"""Ranks that train together end together: a failure of one is raised on all."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import run_ranks
from train.planted import store
from train.test_state import SAMPLES

pytestmark = pytest.mark.timeout(120)

# Warnings are errors from here on: nobody should see one of ours.
SCRIPT = """
import signal, sys, warnings
from pathlib import Path
import pytest
from pictures import draw_nothing
from train.test_state import QUICK, killing
from train.test_step import Flat, LABELS, batch, part, stepper
from wdsbench.errors import DetectorError, RankError, StoppedError
from wdsbench.train.ranks import open_ranks
from wdsbench.train.run import train
from wdsbench.train.step import Signals

warnings.simplefilter("error")
draw_nothing(pytest.MonkeyPatch())
out = Path(sys.argv[1])

def run(place, **options):
    return train(sys.argv[2], ("lstm",), place, QUICK, **options)

class Refuses(Flat):
    def forward(self, hidden):
        raise DetectorError("no such states")

def see_different_states(ranks):
    with pytest.raises(StoppedError):  # the first rank gets a signal
        run(out / "one", progress=killing(2, send=signal.SIGTERM))
    mine = out / ("one" if ranks.is_first else "other")
    with pytest.raises(DetectorError, match="the ranks find different saved states"):
        run(mine, resume=True)
    results = run(out / "one", resume=True)
    assert results.detectors["lstm"].epochs == 4

def refuse_a_batch(ranks):
    steps = stepper(Flat(), ranks=ranks)
    mine = part(batch(LABELS), 4 * ranks.rank, 4 * ranks.rank + 4)
    assert steps.step(mine, 0, Signals()).used == 6
    steps = stepper(Refuses() if ranks.rank == 1 else Flat(), ranks=ranks)
    words = "rank 1 cannot run its step: no such states" if ranks.rank else "lost the others"
    with pytest.raises(RankError, match=words):
        steps.step(mine, 1, Signals())

with open_ranks("cpu", 30) as ranks:
    see_different_states(ranks)
    refuse_a_batch(ranks)  # after which they cannot talk
"""


def test_ranks_see_different_states_and_refuse_a_batch(tmp_path: Path) -> None:
    run_ranks(SCRIPT, tmp_path, store(SAMPLES).folder)
