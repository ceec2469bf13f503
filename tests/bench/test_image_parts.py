"""The parts of ``bench images`` run for real on small images, and the readers agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from bench.test_parts import check
from trials import full_only

from wdsbench import TraceLoader
from wdsbench.bench import images
from wdsbench.bench.part import Settings
from wdsbench.bench.parts import image_parts


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(images, "HEIGHT", 140)
    monkeypatch.setattr(images, "WIDTH", 150)
    monkeypatch.setattr(images, "FILES", 6)
    return Settings(data=tmp_path, repeats=1, least_seconds=0.001)


def test_the_readers_agree(small: Settings) -> None:
    """Ours rounds the resized image to 8 bits; the lazy data set does not."""
    folder, shards = images.make_images(small.data, 8)
    paths = sorted(folder.iterdir())
    assert paths[6].samefile(paths[0])
    lazy = images.LazyImages(paths)
    (batch,) = TraceLoader(shards, None, fields=("image",), layout="image", batch_size=8)
    assert batch.image is not None
    for name, image in zip(batch.question_ids, batch.image, strict=True):
        expected = lazy[int(name[:4])]
        assert torch.allclose(image, expected, atol=1.5 / 200)
        assert np.ptp(image.numpy()) == 1


def test_rates(small: Settings, tmp_path: Path) -> None:
    part = images.rates_part(8, small)
    cases = ["lazy-w0", "lazy-w2", "ours-t1", "ours-t2", "ours-w2", "in-memory"]
    others = ("lazy-w0", "lazy-w2", "in-memory")
    ratios = {*(f"ours_over_{name}" for name in others), "ours_w2_over_ours_w0"}
    check(part, cases, ratios, small, tmp_path)


@full_only
def test_memory(small: Settings, tmp_path: Path) -> None:
    settings = Settings(data=small.data, repeats=1, scale=0.02)
    part = images.memory_part(settings)
    check(part, ["model", "ours-8", "ours-16"], {"growth_mb", "above_model_mb"}, small, tmp_path)


def test_packing(small: Settings) -> None:
    part = images.pack_part(small)
    assert [result.name for result in part.results] == ["tifffile", "ours"]
    assert part.ratios["tifffile_over_ours"] > 0
    assert not list(small.data.glob("packed-*"))


def test_the_parts_have_names() -> None:
    assert list(image_parts()) == ["50", "200", "800", "memory", "pack"]
