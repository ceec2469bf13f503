"""Plots are PNG files of some size; what they look like is for eyes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wdsbench.view.plots import COLOURS, RocCurve, plot_roc, plot_training

PNG = b"\x89PNG\r\n\x1a\n"


def size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content.startswith(PNG)
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


@pytest.mark.parametrize("count", [1, len(COLOURS) + 2])
def test_roc(count: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.random(100) < 0.5
    curves = [
        RocCurve(f"d{number}", generator.normal(size=100) + labels, 0.8 - number / 50, (0.7, 0.9))
        for number in range(count)
    ]
    path = plot_roc(tmp_path / "new" / "roc.png", labels, curves)
    assert path == tmp_path / "new" / "roc.png"
    assert min(size(path)) >= 600
    assert [file.name for file in path.parent.iterdir()] == ["roc.png"]


def test_training(tmp_path: Path) -> None:
    records = [
        {"detector": name, "epoch": epoch, "loss": 0.7 / (epoch + 1), "val_auroc": 0.5 + epoch / 9}
        for name in ("lstm", "gnn")
        for epoch in range(3)
    ]
    path = plot_training(tmp_path / "curves.png", records)
    assert min(size(path)) >= 600


def test_same_figures_give_the_same_file(tmp_path: Path) -> None:
    records = [{"detector": "lstm", "epoch": 0, "loss": 0.7, "val_auroc": 0.5}]
    one = plot_training(tmp_path / "a.png", records).read_bytes()
    assert plot_training(tmp_path / "b.png", records).read_bytes() == one
