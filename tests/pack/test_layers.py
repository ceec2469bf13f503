"""Which of the model's layers traces hold is known to the data set, and comes back from it."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_raw, write_pickle
from shards.damage import Sample, rewritten
from trials import FULL_ONLY

from wdsbench.errors import ShardError, TraceError
from wdsbench.pack import PackOptions, pack
from wdsbench.pack.unpack import unpack
from wdsbench.shards.check.repair import repair_dataset
from wdsbench.shards.check.verify import verify_dataset, verify_tars
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.plain import index_tars
from wdsbench.traces.read import read_traces
from wdsbench.traces.write import write_traces

CHOSEN = [0, 4, 31]
OPTIONS = PackOptions(shard_mb=0.01, threads=1)


def make_raws(first: int, count: int, layers: Any = None) -> list[dict[str, Any]]:
    raws = [{**make_raw(f"q{i}", seed=i), "label": i % 2} for i in range(first, first + count)]
    return [raw if layers is None else {**raw, "layers": layers} for raw in raws]


def pack_files(folder: Path, *files: list[dict[str, Any]], **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for number, raws in enumerate(files):
        write_pickle(folder / "t" / f"b{number}.pkl", raws)
    pack([str(folder / "t")], folder / "out", options=OPTIONS, **more)
    return folder / "out"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_files(tmp_path_factory.mktemp("original"), make_raws(0, 12, CHOSEN))


@pytest.fixture
def chosen(original: Path, tmp_path: Path) -> Path:
    """Return a copy of a data set of 12 traces that hold the layers ``CHOSEN``."""
    return Path(shutil.copytree(original, tmp_path / "chosen"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def metas(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar.getmembers():
                if member.name.endswith(".meta.json"):
                    file = tar.extractfile(member)
                    assert file is not None
                    found.append(json.load(file))
    return found


@pytest.mark.parametrize(
    ("layers", "workers"),
    [
        pytest.param(CHOSEN, 1, id="list-1"),
        pytest.param(CHOSEN, 2, id="list-2", marks=FULL_ONLY),
        pytest.param(tuple(CHOSEN), 1, id="tuple-1"),
        pytest.param(tuple(CHOSEN), 2, id="tuple-2", marks=FULL_ONLY),
        pytest.param(np.array(CHOSEN), 1, id="ndarray-1"),
        pytest.param(np.array(CHOSEN), 2, id="ndarray-2", marks=FULL_ONLY),
    ],
)
def test_index_and_samples_name_them(tmp_path: Path, layers: Any, workers: int) -> None:
    out = pack_files(tmp_path, make_raws(0, 12, layers), make_raws(12, 12, layers), workers=workers)
    index = DatasetIndex.open(out)
    assert index.model_layers == tuple(CHOSEN)
    assert index.file.provenance.layers == CHOSEN
    assert [meta["layers"] for meta in metas(out)] == [CHOSEN] * 24
    assert verify_dataset(out).sound
    tars = sorted(out.glob("*.tar"))
    assert index_tars(tars).model_layers == tuple(CHOSEN)
    assert verify_tars(tars).sound


def test_all_layers_are_not_named(chosen: Path, tmp_path: Path) -> None:
    """So that a data set has the bytes it had before there was such a key."""
    out = pack_files(tmp_path, make_raws(0, 12))
    index = DatasetIndex.open(out)
    assert index.model_layers is None
    assert "layers" not in index.file.provenance.model_dump(mode="json")
    assert all("layers" not in meta for meta in metas(out))
    index, other = DatasetIndex.open(out), DatasetIndex.open(chosen)
    for name, column in index.columns.items():
        if name.endswith(".xxh3") and not name.startswith("meta.json"):
            np.testing.assert_array_equal(column, other.columns[name])


#: (layers of the traces before, layers of the last trace, words of the error)
DISAGREE = [
    (CHOSEN, [0, 5, 31], "holds layers 0, 5, 31, the traces before layers 0, 4, 31; extract"),
    (CHOSEN, None, "holds all layers, the traces before layers 0, 4, 31; extract them"),
    (None, CHOSEN, "holds layers 0, 4, 31, the traces before all layers; extract them"),
]


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(("first", "second", "words"), DISAGREE)
def test_traces_must_agree(
    tmp_path: Path, first: Any, second: Any, words: str, apart: bool
) -> None:
    disagree(tmp_path, first, second, words, apart=apart, workers=1)


@pytest.mark.parametrize("apart", [True, pytest.param(False, marks=FULL_ONLY)])
@pytest.mark.parametrize(
    ("first", "second", "words"),
    [DISAGREE[0], *(pytest.param(*row, marks=FULL_ONLY) for row in DISAGREE[1:])],
)
def test_traces_of_two_workers_must_agree(
    tmp_path: Path, first: Any, second: Any, words: str, apart: bool
) -> None:
    disagree(tmp_path, first, second, words, apart=apart, workers=2)


def disagree(
    tmp_path: Path, first: Any, second: Any, words: str, *, apart: bool, workers: int
) -> None:
    """Assert that packing refuses the last trace, in a file of its own if ``apart``."""
    one, other = make_raws(0, 6, first), make_raws(6, 1, second)
    files = [one, other] if apart else [one + other]
    with pytest.raises(TraceError) as caught:
        pack_files(tmp_path, *files, workers=workers)
    assert words in str(caught.value)
    assert caught.value.question_id == "q6"
    assert (Path(str(caught.value.file)).name, caught.value.position) == (
        ("b1.pkl", 0) if apart else ("b0.pkl", 6)
    )
    assert not (tmp_path / "out").exists()


def test_appending(chosen: Path, tmp_path: Path) -> None:
    out, before = chosen, contents(chosen)
    for layers in (None, [1, 4, 31]):
        write_pickle(tmp_path / "more.pkl", make_raws(12, 6, layers))
        with pytest.raises(TraceError, match="the traces before layers 0, 4, 31"):
            pack([str(tmp_path / "more.pkl")], out, options=OPTIONS, append=True)
        assert contents(out) == before
    write_pickle(tmp_path / "more.pkl", make_raws(12, 6, CHOSEN))
    pack([str(tmp_path / "more.pkl")], out, options=OPTIONS, append=True)
    index = DatasetIndex.open(out)
    assert len(index) == 18
    assert index.model_layers == tuple(CHOSEN)
    assert verify_dataset(out).sound


def test_resuming(tmp_path: Path) -> None:
    """What an interrupted run has seen of layers holds for the rest of it."""
    files = [make_raws(0, 12, CHOSEN), make_raws(12, 12, CHOSEN)]
    whole = pack_files(tmp_path / "whole", *files)
    with pytest.raises(TraceError, match="tokens"):
        pack_files(tmp_path, files[0], [{**files[1][0], "tokens": None}], resume=True)
    assert any((tmp_path / "out").glob("*.tar"))
    for other in (None, [1, 2, 3]):
        write_pickle(tmp_path / "t" / "b1.pkl", make_raws(12, 12, other))
        with pytest.raises(TraceError, match="the traces before layers 0, 4, 31"):
            pack([str(tmp_path / "t")], tmp_path / "out", options=OPTIONS, resume=True)
    write_pickle(tmp_path / "t" / "b1.pkl", files[1])
    pack([str(tmp_path / "t")], tmp_path / "out", options=OPTIONS, resume=True)
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.parametrize("file_format", ["npz", pytest.param("pkl", marks=FULL_ONLY)])
def test_unpacking_gives_them_back(chosen: Path, tmp_path: Path, file_format: str) -> None:
    files = unpack(chosen, tmp_path / "back", file_format=file_format).files
    assert {trace.layers for path in files for trace in read_traces(path)} == {tuple(CHOSEN)}
    pack([str(tmp_path / "back")], tmp_path / "again", options=OPTIONS)
    again, first = contents(tmp_path / "again"), contents(chosen)
    for name in first:
        assert name == "index.json" or again[name] == first[name]
    assert DatasetIndex.open(tmp_path / "again").model_layers == tuple(CHOSEN)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("suffix", ["pkl", "pkl.gz", "npz", "safetensors", "h5"])
def test_every_format_holds_them(tmp_path: Path, suffix: str, count: int) -> None:
    if suffix == "h5":
        pytest.importorskip("h5py")
    for layers in (CHOSEN, np.array(CHOSEN, np.int32), None):
        path = tmp_path / f"a.{suffix}"
        write_traces(path, make_raws(0, count, layers))
        wanted = None if layers is None else tuple(CHOSEN)
        assert [trace.layers for trace in read_traces(path)] == [wanted] * count


def test_repaired_data_keeps_them(chosen: Path, tmp_path: Path) -> None:
    repair_dataset(chosen, tmp_path / "repaired")
    assert DatasetIndex.open(tmp_path / "repaired").model_layers == tuple(CHOSEN)


def test_a_sample_that_says_otherwise_is_found(chosen: Path, tmp_path: Path) -> None:
    def change(samples: list[Sample]) -> None:
        meta = json.loads(samples[5].members["meta.json"])
        meta["layers"] = [0, 1, 2]
        samples[5].members["meta.json"] = json.dumps(meta).encode()

    rewritten(chosen, tmp_path / "changed", change)
    (problem,) = verify_dataset(tmp_path / "changed").problems
    assert problem.kind == "meta"
    assert problem.detail == "layers is [0, 1, 2], the index says [0, 4, 31]"
    with pytest.raises(ShardError, match=r"holds layers 0, 1, 2, .* layers 0, 4, 31; open each"):
        index_tars(sorted((tmp_path / "changed").glob("*.tar")))


@pytest.mark.parametrize("numbers", [[0, 1], [0, 4, 4], [0, 1, "2"], 3, [True, 2, 3], {"a": 1}])
def test_an_index_that_names_what_are_no_layers(chosen: Path, numbers: Any) -> None:
    index = json.loads((chosen / "index.json").read_bytes())
    index["provenance"]["layers"] = numbers
    (chosen / "index.json").write_text(json.dumps(index))
    with pytest.raises(ShardError, match=r"layers are .*, expected (3 )?ascending integers"):
        _ = DatasetIndex.open(chosen).model_layers
    problem, *_ = verify_dataset(chosen).problems
    assert problem.kind == "index"
    assert re.search(r"layers are .*, expected (3 )?ascending integers", problem.detail)


def test_a_foreign_key_of_that_name_is_nobodys_layers(tmp_path: Path) -> None:
    """Tars of other writers may mean something else by it."""
    out = pack_files(tmp_path, make_raws(0, 4))

    def change(samples: list[Sample]) -> None:
        for sample in samples:
            meta = {**json.loads(sample.members["meta.json"]), "layers": "all of them"}
            sample.members["meta.json"] = json.dumps(meta).encode()

    rewritten(out, tmp_path / "foreign", change)
    assert index_tars(sorted((tmp_path / "foreign").glob("*.tar"))).model_layers is None
