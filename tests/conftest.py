"""Marks that need a machine to have something, and what tests that run at once share of it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before anything imports NumPy or torch: processes with as many spinning threads each as there
    # are cores take longer than with one each. Children inherit it.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


@pytest.fixture(scope="session", autouse=True)
def no_flushes() -> Iterator[None]:
    """Do not wait for the disk, milliseconds for each of many small shards: no test cuts the power.

    Processes that tests start flush their files.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):  # macOS has only the former
                patch.setattr(os, name, os.fstat)  # refuses what is no open file, as they do
        yield


@pytest.fixture
def no_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the detectors that a test names and no others; `test_controls.py` runs the controls."""
    monkeypatch.setattr("wdsbench.train.run.with_controls", lambda specs, *_: list(specs))


def pytest_collection_finish() -> None:
    """Freeze what the imports made: the garbage collector takes half a second to walk it."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Undo the freeze: plugins that are imported last look for referrers."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first, so that no process ends with them alone; skip ``gpu`` tests
    without a GPU, unless WDSBENCH_REQUIRE_GPU=1.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or os.environ.get("WDSBENCH_REQUIRE_GPU") == "1":
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
