"""Layout ``image``: patches decoded and normalised in C++, compared with NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_dataset
from images import Patches, make_patches
from trials import FULL_ONLY

from wdsbench import DecodeError, TraceDataset, TraceLoader
from wdsbench.records import Batch
from wdsbench.shards.check.verify import verify_dataset
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_index
from wdsbench.shards.read.sample import StoredSample

DTYPES = ("|u1", "<u2", "<f2")


@pytest.fixture(scope="module", params=DTYPES)
def patches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Patches:
    return make_patches(tmp_path_factory.mktemp("patches"), request.param)


def loader(patches: Patches, **options: object) -> TraceLoader:
    settings = {"batch_size": 8, "fields": ("image",), "layout": "image", **options}
    return TraceLoader(patches.folder, None, **settings)  # type: ignore[arg-type]


def same(batch: Batch, patches: Patches, channels: list[int] | None = None) -> int:
    """Compare every patch of the batch; return B."""
    assert batch.image is not None
    assert batch.hidden is None
    for key, image in zip(batch.keys, batch.image, strict=True):
        expected = patches.pixels(key, slice(None) if channels is None else channels)
        np.testing.assert_array_equal(image.cpu().numpy(), expected)
    return len(batch)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=FULL_ONLY)])
def test_patches_are_normalised(patches: Patches, num_workers: int) -> None:
    opened = loader(patches, num_workers=num_workers)
    batches = list(opened)
    assert batches[0].image is not None
    assert batches[0].image.shape == (8, 3, 16, 16)
    assert sum(same(batch, patches) for batch in batches) == len(patches.stored)
    labels = torch.cat([batch.label for batch in batches])
    assert sorted(labels.tolist()) == [0.0] * 20 + [1.0] * 20
    opened.close()


def test_large_batches_bypass_the_cache(tmp_path: Path) -> None:
    """Batches of more than 4 MB are written by streaming stores; P is odd, so rows do not align."""
    large = make_patches(tmp_path, "<u2", samples=24, pixels=131)
    assert sum(same(batch, large) for batch in loader(large, threads=2)) == 24


def test_channels_are_selected(patches: Patches) -> None:
    for batch in loader(patches, layers=[2, 0]):
        assert batch.image is not None
        assert batch.image.shape[1] == 2
        same(batch, patches, [2, 0])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_device_normalises_what_is_stored(patches: Patches, num_workers: int) -> None:
    opened = loader(patches, device="cpu", widen="device", num_workers=num_workers)
    assert sum(same(batch, patches) for batch in opened) == len(patches.stored)
    opened.close()


def test_single_samples(patches: Patches) -> None:
    dataset = TraceDataset(patches.folder, None, fields=("image", "meta"), layers=[2, 0])
    samples = list(dataset)
    assert len(samples) == len(dataset) == len(patches.stored)
    for sample in samples:
        np.testing.assert_array_equal(sample["image"], patches.pixels(sample["key"], [2, 0]))
        assert sample["meta"]["question_id"] == sample["question_id"]
        assert "hidden" not in sample
    with pytest.raises(DecodeError, match="this data set holds images"):
        TraceDataset(patches.folder, None)


def test_the_stored_sample_agrees(patches: Patches) -> None:
    index = DatasetIndex.open(patches.folder)
    assert (index.num_layers, index.num_features, index.tensor.name) == (3, 16, "image")
    for row in range(len(index)):
        sample, key = StoredSample(index, row), index.key(row)
        np.testing.assert_array_equal(sample.array("image"), patches.stored[key])
        np.testing.assert_array_equal(sample.pixels(), patches.pixels(key))


def test_tar_files_without_an_index(patches: Patches) -> None:
    index = open_index(sorted(patches.folder.glob("*.tar")))
    assert index.tensor.name == "image"
    opened = TraceLoader(
        sorted(patches.folder.glob("*.tar")), None, fields=("image",), layout="image"
    )
    assert sum(same(batch, patches) for batch in opened) == len(patches.stored)


def test_it_is_resumed_in_mid_epoch(patches: Patches) -> None:
    whole = [batch.keys for batch in loader(patches, seed=3)]
    first = loader(patches, seed=3)
    batches = iter(first)
    begun = [next(batches).keys, next(batches).keys]
    state = json.loads(json.dumps(first.state_dict()))
    rest = loader(patches, seed=3)
    rest.load_state_dict(state)
    assert begun + [batch.keys for batch in rest] == whole


def test_it_is_sound(patches: Patches) -> None:
    report = verify_dataset(patches.folder)
    assert report.sound, report.problems


def test_ranges_that_hold_no_pixel_are_found(tmp_path: Path) -> None:
    damaged = make_patches(tmp_path, samples=10)
    index = DatasetIndex.open(tmp_path)
    place = index.place(0, "image_range.npy")
    shard = Path(place.shard)
    data = bytearray(shard.read_bytes())
    end = place.offset_bytes + place.size_bytes
    data[end - 4 : end] = np.float32(np.nan).tobytes()
    shard.write_bytes(data)
    report = verify_dataset(tmp_path)
    assert any(problem.member == place.name for problem in report.problems)
    # A range that is not finite decodes to zeros, as one that is empty.
    images = {
        key: image
        for batch in loader(damaged)
        for key, image in zip(batch.keys, batch.image, strict=True)  # type: ignore[arg-type]
    }
    assert not images[index.key(0)][2].any()


def test_other_layouts_name_the_remedy(patches: Patches, tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"layout='stack' is not available.*holds images"):
        TraceLoader(patches.folder)
    with pytest.raises(DecodeError, match=r"fields=\('hidden',\) is not available"):
        TraceLoader(patches.folder, layout="image")
    traces = make_dataset(tmp_path, traces=12)
    with pytest.raises(DecodeError, match=r"layout='image' is not available.*--images"):
        TraceLoader(traces.folder, fields=("image",), layout="image")


def test_a_member_of_another_shape_is_named(tmp_path: Path) -> None:
    made = make_patches(tmp_path, samples=10)
    index = DatasetIndex.open(tmp_path)
    place = index.place(3, "image.npy")
    shard = Path(place.shard)
    data = bytearray(shard.read_bytes())
    at = data.index(b"(3, 16, 16)", place.offset_bytes)
    data[at : at + 11] = b"(2, 24, 16)"
    shard.write_bytes(data)
    with pytest.raises(DecodeError, match=r"shape \(2, 24, 16\), expected \(3, 16, 16\)") as caught:
        list(loader(made))
    assert caught.value.member == place.name
