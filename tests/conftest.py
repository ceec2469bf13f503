"""Marks that need a machine to have something."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip ``gpu`` tests without a GPU, unless WDSBENCH_REQUIRE_GPU=1 says there must be one."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or os.environ.get("WDSBENCH_REQUIRE_GPU") == "1":
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
