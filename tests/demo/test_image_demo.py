"""The demo on images, small, and the scenes that it makes."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

import numpy as np
import pytest
import tifffile
from pictures import draw_coarsely

from wdsbench import jobs
from wdsbench.demo import DemoOptions, run
from wdsbench.demo.scenes import CHANNELS, write_scenes
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.train.results import load_results


def test_labels_are_where_the_anomalies_are(tmp_path: Path) -> None:
    """The channels of an anomaly alternate, which no land cover does as much."""
    folder, labels = tmp_path / "scenes", tmp_path / "labels.csv"
    write_scenes(folder, labels, 6, 96, 16, seed=1)
    with labels.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 * 36
    contrast: dict[str, list[float]] = {"0": [], "1": []}
    for row in rows:
        image = tifffile.imread(folder / row["image"]).astype(np.float64)
        assert image.shape == (96, 96, CHANNELS)
        y, x = divmod(int(row["tile"]), 6)
        tile = image[16 * y : 16 * y + 16, 16 * x : 16 * x + 16]
        alternating = tile[..., 0] - tile[..., 1] + tile[..., 2] - tile[..., 3]
        contrast[row["label"]].append(float((alternating / tile.sum(axis=-1)).max()))
        if int(row["image"][6:9]) % 2 == 0:
            assert row["label"] == "0"
    assert len(contrast["1"]) > 10
    assert np.median(contrast["1"]) > np.quantile(contrast["0"], 0.9) + 0.05


def test_all_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SCENES", 16)
    monkeypatch.setattr(run, "SCENE_PIXELS", 64)
    monkeypatch.setattr(run, "PATCH_PIXELS", 16)
    monkeypatch.setattr(run, "IMAGE_EPOCHS", 1)
    monkeypatch.setattr(jobs, "TrainJob", functools.partial(jobs.TrainJob, hidden=8, resamples=50))
    draw_coarsely(monkeypatch)
    lines: list[str] = []
    outcome = run.run_demo(DemoOptions(out=tmp_path / "demo", images=True), say=lines.append)
    assert [line.partition(":")[0] for line in lines] == [
        *("scenes", "pack", "train", "predict", "all")
    ]
    assert all(path.exists() for path, _ in outcome.files)
    assert set(load_results(tmp_path / "demo" / "results.json").detectors) == {"autoencoder", "pca"}
    assert list((tmp_path / "demo" / "maps").glob("scene-*.map.tif"))
    index = DatasetIndex.open(tmp_path / "demo" / "shards")
    assert (len(index), index.num_layers, index.num_features) == (16 * 16, CHANNELS, 16)
    lines.clear()
    run.run_demo(DemoOptions(out=tmp_path / "demo", images=True), say=lines.append)
    assert all("finished before" in line for line in lines[:-1])
