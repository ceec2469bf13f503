"""docs/format.md: a reader written from it reads what wdsbench reads, and its tables are true."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from builders import HEADS, make_dataset, make_raw, write_pickle
from docs.reader import Dataset, tar_placements
from image_files import random_pixels, write_tiff
from images import make_patches

from wdsbench import TraceLoader
from wdsbench.errors import ShardError
from wdsbench.pack import PackOptions, pack
from wdsbench.pack.image_samples import ImageOptions
from wdsbench.pack.images import pack_images
from wdsbench.shards.format.kinds import KINDS, member_names
from wdsbench.shards.format.names import make_key, split_of_question
from wdsbench.shards.read.index import DatasetIndex

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
EVERYTHING = PackOptions(attention=("full", "edges", "heads", "sketch"), shard_mb=0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of everything: all kinds, scaled layers, states of answers, several shards."""
    home = tmp_path_factory.mktemp("format")
    raws = []
    for i in range(80):
        raw = make_raw(f"q/{i % 60}.é", seed=i, tokens=300 if i == 7 else None)
        if i % 5 == 1:  # a layer beyond float16
            raw["hidden_states"] = [
                states.astype(np.float32) * (1e6 if layer == 1 else 1)
                for layer, states in enumerate(raw["hidden_states"])
            ]
        if i % 5 == 2:
            prompt = raw["prompt_length"]
            raw["hidden_states"] = [states[prompt:] for states in raw["hidden_states"]]
            raw["states_of"] = "answer"
        if i % 5 == 3:  # nothing but states
            for key in ("attentions", "token_logprobs", "prompt_length"):
                del raw[key]
        raws.append({**raw, "label": i % 2} if i % 7 else raw)
    write_pickle(home / "a.pkl", raws[:50])
    write_pickle(home / "b.pkl", raws[50:])
    pack([str(home / "*.pkl")], home / "shards", options=EVERYTHING)
    return home / "shards"


def test_the_reader_reads_what_wdsbench_reads(folder: Path) -> None:
    read = {sample.key: sample for sample in Dataset(folder)}
    index = DatasetIndex.open(folder)
    assert len(read) == len(index) == 80
    assert len({sample.split for sample in read.values()}) == 3
    assert len(index.file.shardlist) > 3
    kept = [key for key, sample in read.items() if "sketch" in sample.arrays]
    assert 0 < len(kept) < 80
    for row in range(len(index)):
        sample, columns = read[index.key(row)], index.columns
        assert sample.question_id == index.question_id(row) == sample.meta["question_id"]
        for name, value in sample.row.items():
            assert np.array_equal(value, columns[name][row].item(), equal_nan=True), name
        assert make_key(sample.question_id, int(sample.row["trace"])) == sample.key
        assert split_of_question(sample.question_id) == sample.split
    scaled = 0
    for batch in TraceLoader(folder, None, tokens="last", fields=("hidden", "meta"), batch_size=9):
        assert batch.hidden is not None
        assert batch.meta is not None
        for i, key in enumerate(batch.keys):
            hidden = read[key].hidden
            assert hidden is not None
            assert np.array_equal(batch.hidden[i].numpy(), hidden[:, -1])
            assert batch.meta[i] == read[key].meta
            scaled += bool(batch.hidden[i].abs().max() > 65504)
    assert scaled > 0


def test_the_reader_reads_packed_images(tmp_path: Path) -> None:
    made = {f"{n}.tif": random_pixels(40, 50, dtype="int16", seed=n) for n in range(5)}
    for name, pixels in made.items():
        write_tiff(tmp_path / "in" / name, pixels, compression="zstd")
    options = ImageOptions(patch_size=16, tile=True, stride=12, value_range="channel")
    pack_images(str(tmp_path / "in"), tmp_path / "shards", options)
    dataset = Dataset(tmp_path / "shards")
    assert {sample.question_id for sample in dataset} == set(made)
    for sample in dataset:
        pixels, image = made[sample.question_id], sample.meta["image"]
        y, x, height, width = image["window"]
        part = np.moveaxis(pixels[y : y + height, x : x + width], -1, 0).astype(np.float64)
        low, high = np.array(image["range"], float).T[:, :, None, None]
        assert np.array_equal(low[:, 0, 0], pixels.min(axis=(0, 1)))
        stored = sample.arrays["image"].astype(np.float64)
        first, last = sample.arrays["image_range"].T[:, :, None, None]
        found = (stored - first) / (last - first)
        np.testing.assert_allclose(found, (part - low) / (high - low), atol=1e-6)
        assert (image["dtype"], image["height"], image["width"]) == ("int16", 40, 50)
        assert split_of_question(sample.question_id) == sample.split
    for shard in dataset.shards:
        tar_placements(tmp_path / "shards" / shard["url"])


@pytest.mark.parametrize("dtype", ["|u1", "<f2"])
def test_images_agree(dtype: str, tmp_path: Path) -> None:
    patches = make_patches(tmp_path, dtype, samples=20)
    for sample in Dataset(tmp_path):
        assert sample.hidden is None
        image, ranges = sample.arrays["image"].astype(np.float32), sample.arrays["image_range"]
        low, high = ranges.T[:, :, None, None]
        width = np.where(high > low, high - low, np.inf)
        assert np.array_equal((image - low) / width, patches.pixels(sample.key))


def test_all_tokens_edges_and_sketches_agree(tmp_path: Path) -> None:
    folder = make_dataset(tmp_path, traces=40, options=EVERYTHING).folder
    read = {sample.key: sample for sample in Dataset(folder)}
    for batch in TraceLoader(folder, None, layout="graph", fields=("hidden", "sketch")):
        graphs = batch.graph.to_data_list()
        assert batch.sketch is not None
        for i, key in enumerate(batch.keys):
            sample = read[key]
            assert np.array_equal(batch.sketch[i].numpy(), sample.arrays["sketch"], equal_nan=True)
            index, weight = sample.arrays["edges_index"], sample.arrays["edges_weight"]
            ptr = sample.arrays["edges_ptr"]
            assert sample.hidden is not None
            for layer in range(len(ptr) - 1):
                graph = graphs[i * (len(ptr) - 1) + layer]
                edges = slice(ptr[layer], ptr[layer + 1])
                assert np.array_equal(graph.x.numpy(), sample.hidden[layer])
                assert np.array_equal(graph.edge_index.numpy(), index[:, edges])
                assert np.array_equal(graph.edge_attr[:, 0].numpy(), weight[edges])


def test_maps_and_edges_of_heads_are_those_of_the_input(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=20, options=EVERYTHING)
    for sample in Dataset(packed.folder):
        maps = np.stack(packed.raws[sample.question_id]["attentions"])
        tokens = maps.shape[-1]
        rows, columns = np.tril_indices(tokens)
        assert np.array_equal(sample.arrays["attention"], maps[:, :, rows, columns])
        rebuilt = np.zeros(maps.shape, np.float16)
        index, ptr = sample.arrays["heads_index"], sample.arrays["heads_ptr"]
        for place in range(len(ptr) - 1):
            edges = slice(ptr[place], ptr[place + 1])
            layer, head = divmod(place, HEADS)
            rebuilt[layer, head][index[1, edges], index[0, edges]] = sample.arrays["heads_weight"][
                edges
            ]
        below = np.tril(maps, -1)
        expected = np.where(below.astype(np.float32) >= np.float32(0.05), below, 0)
        assert np.array_equal(rebuilt, expected)


def test_the_table_tells_what_the_tar_files_hold(folder: Path) -> None:
    dataset = Dataset(folder)
    places: dict[str, tuple[int, int]] = {}
    for shard in dataset.shards:
        found = tar_placements(folder / shard["url"])
        keys = [name.partition(".")[0] for name in found]
        runs = [key for key, before in zip(keys, ["", *keys], strict=False) if key != before]
        assert len(runs) == len(set(runs)) == shard["nsamples"]
        assert all(found[name][0] % 512 == 0 for name in found)
        places |= found
    told = {}
    for row in range(len(dataset)):
        names = list(dataset.members(row))
        assert {"hidden.npy", "meta.json"} <= set(names)
        key = dataset.columns["key"][row].decode()
        for name in names:
            offset, size = (int(dataset.columns[f"{name}.{part}"][row]) for part in PARTS)
            told[f"{key}.{name}"] = (offset, size)
    assert told == places
    assert max(map(len, places)) <= 100


PARTS = ("offset", "size")


def test_the_member_table_is_the_one_of_the_code() -> None:
    rows = PAGE.partition("### Members")[2].partition("The table is in")[0]
    table = []
    for line in re.findall(r"^\| `.*$", rows, re.MULTILINE):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        name, dtypes, shape, kind = cells[:4]
        axes = tuple(int(axis) if axis.isdecimal() else axis for axis in _listed(shape))
        table.append((name.strip("`"), tuple(dtypes.replace("`", "").split(", ")), axes, kind))
    assert [(name, types, axes, kind) for name, types, axes, kind in table] == [
        (spec.name, tuple(dtype.replace("|", "\\|") for dtype in spec.dtypes), spec.axes, kind)
        for name in member_names()
        for kind, row in KINDS.items()
        for spec in row.members
        if spec.name == name
    ]


def _listed(shape: str) -> list[str]:
    text = shape.strip("`[]")
    return text.split(", ") if text else []


def test_the_page_lists_every_column(folder: Path) -> None:
    columns = DatasetIndex.open(folder).columns
    members = [name.removesuffix(".size") for name in columns if name.endswith(".size")]
    images = sorted(spec.name for spec in KINDS["image"].members)
    assert sorted([*members, *images]) == list(member_names())
    for name in columns:
        shown = name
        for member in members:
            shown = shown.replace(f"{member}.", "<member>.")
        assert f"\n| `{shown}` | `" in PAGE, name


def test_the_examples_of_keys_and_splits_are_true() -> None:
    question, key = re.findall(r"question `([^`]+)`, trace 0 has the key\s+`([^`]+)`", PAGE)[0]
    assert make_key(question, 0) == key
    line = re.findall(r"Examples: .*`test`\.", PAGE)[0]
    told = re.findall(r"`([^`]+)` (?:is )?in `(train|val|test)`", line)
    assert [split for _, split in told] == ["train", "val", "test"]
    assert all(split_of_question(question) == split for question, split in told)


@pytest.mark.parametrize(
    "broken",
    ['"wdsbench_format": 1 -> "wdsbench_format": 2', '"name": -> "unknown": 1, "name":'],
)
def test_another_version_or_an_unknown_key_is_refused(
    folder: Path, tmp_path: Path, broken: str
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    before, after = broken.split(" -> ")
    text = (folder / "index.json").read_text(encoding="utf-8")
    assert before in text
    (tmp_path / "index.json").unlink()
    (tmp_path / "index.json").write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"version|unknown"):
        Dataset(tmp_path)
    with pytest.raises(ShardError, match=r"index\.json"):
        DatasetIndex.open(tmp_path)
