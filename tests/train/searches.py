"""Small searches for settings, and their interruption."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from train.planted import Opened, make_samples, store
from trials import FULL

from wdsbench.progress import T
from wdsbench.train.config import TrainConfig
from wdsbench.train.search import search
from wdsbench.train.trials import SEARCH_NAME, SearchResult, Trial, read_search

QUICK = TrainConfig(epochs=2, batch_size=32, hidden=16, depth=1, resamples=200, device="cpu")
SAMPLES = make_samples(120, signal=1.0, seed=3, logprob_signal=0.3)
#: Trials of a whole search.
COUNT = 5 if FULL else 3


def without_test() -> Opened:
    """Return a constructor that refuses to open the test split."""
    return Opened(refused=("test",))


def run(out: Path, trials: int, config: TrainConfig = QUICK, **options: Any) -> SearchResult:
    options.setdefault("open_loader", without_test())
    shards = options.pop("shards", None) or store(SAMPLES).folder
    return search(shards, options.pop("detector", "lstm"), out, config, trials, **options)


@functools.cache
def whole() -> tuple[SearchResult, Path]:
    """Return a search of `COUNT` trials and its folder, the same one to all tests of a session."""
    folder = Path(tempfile.mkdtemp(prefix="search-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return run(folder / "search", COUNT), folder / "search"


def load_search(out: Path) -> SearchResult:
    found = read_search(out / SEARCH_NAME)
    assert found is not None
    return found[0]


def figures(result: SearchResult) -> list[Trial]:
    """Return the trials without the times they took."""
    return [replace(trial, seconds=0.0) for trial in result.trials]


class Killed(BaseException):
    """A kill, which nothing catches."""


def killing(after: int, *, send: signal.Signals | None = None) -> Any:
    """Return a `Progress` that kills before the epoch ``after``, counted over all trials."""
    count = 0

    def progress(items: Iterable[T], total: int | None, what: str) -> Iterable[T]:  # noqa: ARG001
        nonlocal count
        for item in items:
            if "training" in what:
                if count == after:
                    if send is None:
                        raise Killed
                    os.kill(os.getpid(), send)
                count += 1
            yield item

    return progress
