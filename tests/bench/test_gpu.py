"""The part that needs a CUDA device: refused without one, whole with one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from wdsbench.bench.data import Shape
from wdsbench.bench.gpu import gpu_part
from wdsbench.bench.part import Settings
from wdsbench.errors import WdsbenchError

SMALL = Shape("A", 96, 4, 64, 32)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_without_a_device_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WdsbenchError, match="needs a CUDA device"):
        gpu_part(Settings(tmp_path), SMALL)


@pytest.mark.gpu
def test_training_on_the_device(tmp_path: Path) -> None:
    part = gpu_part(Settings(tmp_path, repeats=1), SMALL)
    names = [result.name for result in part.results]
    assert names == ["pinned-copy", "train-resident", "train-host", "train-device", "train-w2"]
    assert all(0 <= part.ratios[f"{name.replace('-', '_')}_gpu_waited"] <= 1 for name in names[2:])
