"""Files added to a packed data set: what is there stays, what does not fit is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_raw, write_pickle, write_scores
from forks import start_code
from trials import FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.errors import PackError, TraceError
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.labels import RowLabels, replace_labels

OPTIONS: dict[str, Any] = {"shard_mb": 0.01, "attention": ("edges", "heads", "sketch")}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


#: Traces of a file.
COUNT = 12


def write_files(folder: Path, first: int) -> Path:
    raws = [make_raw(f"q{i}", seed=i) for i in range(first, first + COUNT)]
    return write_pickle(folder / f"b{first:03d}.pkl", raws)


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    return write_scores(tmp_path / "s.csv", {f"q{i}": i % 10 / 10 for i in range(200)})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a raw file, and what it packs to in ``out``."""
    folder = tmp_path_factory.mktemp("original")
    table = write_scores(folder / "s.csv", {f"q{i}": i % 10 / 10 for i in range(200)})
    pack_more(folder, table, write_files(folder, 0), append=False)
    return folder


@pytest.fixture
def packed(original: Path, tmp_path: Path) -> Path:
    """Return a copy of the data set, with its raw file beside it."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out"


def pack_more(tmp_path: Path, scores: Path | None, *files: Path, **changes: Any) -> Any:
    options = {key: value for key, value in changes.items() if key not in ("append", "workers")}
    return pack(
        [str(path) for path in files],
        tmp_path / "out",
        scores=scores,
        options=PackOptions(**{**OPTIONS, **options}),
        append=changes.get("append", True),
        workers=changes.get("workers", 1),
    )


def rows_of(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return what the table and the loader say of every sample."""
    index = DatasetIndex.open(folder)
    found = {}
    for row in range(len(index)):
        columns = [index.columns[name][row] for name in ("split", "trace", "tokens", "label")]
        found[index.key(row)] = (index.question_id(row), *map(float, columns))
    loaded = {}
    for batch in TraceLoader(folder, split=None, verify="hash", fields=("hidden", "sketch")):
        for place, key in enumerate(batch.keys):
            assert batch.hidden is not None
            loaded[key] = batch.hidden[place].numpy().tobytes()
    return {key: (*values, loaded[key]) for key, values in found.items()}


@pytest.mark.parametrize("workers", [pytest.param(1, marks=FULL_ONLY), 2])
def test_the_same_samples_as_packed_together(
    packed: Path, tmp_path: Path, scores: Path, workers: int
) -> None:
    before = contents(packed)
    more = [write_files(tmp_path, 30), write_files(tmp_path, 60)]
    report = pack_more(tmp_path, scores, *more, workers=workers)
    assert report.samples == 2 * COUNT
    after = contents(packed)
    tars = {name for name in before if name.endswith(".tar")}
    assert all(after[name] == before[name] for name in tars)
    index = DatasetIndex.open(packed)
    assert set(after) == {
        "index.json",
        index.file.table.file,
        *(entry.url for entry in index.file.shardlist),
    }
    assert report.bytes_written == sum(len(after[name]) for name in set(after) - tars) - len(
        after["index.json"]
    ) - len(after[index.file.table.file])
    pack(
        [str(tmp_path / "b*.pkl")],
        tmp_path / "together",
        scores=scores,
        options=PackOptions(**OPTIONS),
    )
    assert rows_of(packed) == rows_of(tmp_path / "together")
    together = DatasetIndex.open(tmp_path / "together").file
    for name in ("fields", "splits", "layers", "labels"):
        assert getattr(index.file, name) == getattr(together, name), name
    provenance = index.file.provenance.model_dump(mode="json")
    assert provenance.pop("appended") == [{"inputs": 2, "scores": "s.csv"}]
    assert provenance == together.provenance.model_dump(mode="json")


def test_appending_twice(packed: Path, tmp_path: Path, scores: Path) -> None:
    for first in (30, 60):
        pack_more(tmp_path, scores, write_files(tmp_path, first))
    index = DatasetIndex.open(packed)
    assert len(index) == 3 * COUNT
    assert len(index.file.provenance.appended) == 2


def test_other_members_and_wide_states(tmp_path: Path) -> None:
    """Columns that one of the tables does not have."""
    raws = [make_raw(f"q{i}", seed=i, dtype=np.float32) for i in range(2 * COUNT)]
    for raw in raws:
        raw["label"] = 1
    for raw in raws[COUNT:]:
        raw["hidden_states"][1] *= 1e6
    write_pickle(tmp_path / "a.pkl", [{**r, "attentions": None} for r in raws[:COUNT]])
    write_pickle(tmp_path / "b.pkl", raws[COUNT:])
    for order in ("ab", "ba"):
        out = tmp_path / order
        for number, name in enumerate(order):
            pack([str(tmp_path / f"{name}.pkl")], out, append=number > 0)
        index = DatasetIndex.open(out)
        assert [layer.scaled_samples for layer in index.file.layers] == [0, COUNT, 0]
        assert index.file.fields["edges"].samples == COUNT
        assert int((index.member("hidden_scale.npy", "size") != 0).sum()) == COUNT
        count = sum(len(batch) for batch in TraceLoader(out, split=None, verify="hash"))
        assert count == 2 * COUNT


def test_a_copy_is_refused(packed: Path, tmp_path: Path, scores: Path) -> None:
    before = contents(packed)
    (tmp_path / "copy.pkl").write_bytes((tmp_path / "b000.pkl").read_bytes())
    with pytest.raises(TraceError, match=r"copy\.pkl.*is the same trace as sample q0-"):
        pack_more(tmp_path, scores, tmp_path / "copy.pkl")
    assert contents(packed) == before


def test_a_trace_number_that_is_there_is_refused(
    packed: Path, tmp_path: Path, scores: Path
) -> None:
    before = contents(packed)
    write_pickle(tmp_path / "n.pkl", [{**make_raw("q3", seed=77), "trace_number": 0}])
    with pytest.raises(TraceError, match="has trace number 0, as has sample q3-"):
        pack_more(tmp_path, scores, tmp_path / "n.pkl")
    assert contents(packed) == before
    write_pickle(tmp_path / "n.pkl", [make_raw("q3", seed=77)])
    pack_more(tmp_path, scores, tmp_path / "n.pkl")
    index = DatasetIndex.open(packed)
    traces = [index.columns["trace"][r] for r in range(len(index)) if index.question_id(r) == "q3"]
    assert traces == [0, 1]


# (option, what the data set has, what this run has)
OTHER: list[tuple[dict[str, Any], str]] = [
    ({"attention": ("edges",)}, "--attention edges,heads,sketch, this run has edges"),
    ({"edge_rule": "top:0.5"}, "--edge-rule top:0.35, this run has top:0.5"),
    ({"head_threshold": 0.1}, "--head-threshold 0.05, this run has 0.1"),
    ({"threshold": 0.3}, "--threshold 0.5, this run has 0.3"),
    ({"missing_score": "keep"}, "--missing-score error, this run has keep"),
    ({"split_by": "file"}, "--split-by question, this run has file"),
    ({"reduce": "pca:3"}, "--reduce none, this run has pca:3"),
]


@pytest.mark.parametrize(("change", "words"), OTHER)
def test_other_options_are_refused_with_both_values(
    change: dict[str, Any], words: str, packed: Path, tmp_path: Path, scores: Path
) -> None:
    before = contents(packed)
    with pytest.raises(PackError, match=words):
        pack_more(tmp_path, scores, write_files(tmp_path, 30), **change)
    assert contents(packed) == before


def test_labels_from_elsewhere_and_other_models(packed: Path, tmp_path: Path, scores: Path) -> None:
    before = contents(packed)
    with pytest.raises(PackError, match="labels from scores, this run has traces"):
        pack_more(tmp_path, None, write_files(tmp_path, 30))
    write_pickle(tmp_path / "n.pkl", [make_raw("q90", seed=9, features=9)])
    with pytest.raises(TraceError, match="3 layers of 9 features, the traces before have 3 of 8"):
        pack_more(tmp_path, scores, tmp_path / "n.pkl")
    assert contents(packed) == before


def test_scores_of_two_files(packed: Path, tmp_path: Path) -> None:
    more = write_scores(tmp_path / "more.csv", {f"q{i}": 1.0 for i in range(30, 60)})
    pack_more(tmp_path, more, write_files(tmp_path, 30))
    labels = DatasetIndex.open(packed).labels
    assert labels is not None
    assert (labels.file, labels.xxh3) == ("s.csv, more.csv", None)


def test_reduced_states_are_reduced_by_the_same_components(tmp_path: Path, scores: Path) -> None:
    pack_more(tmp_path, scores, write_files(tmp_path, 0), append=False, reduce="pca:3")
    with pytest.raises(PackError, match="--reduce pca:3, this run has pca:4"):
        pack_more(tmp_path, scores, write_files(tmp_path, 30), reduce="pca:4")
    pack_more(tmp_path, scores, write_files(tmp_path, 30), reduce="pca:3")
    index = DatasetIndex.open(tmp_path / "out")
    assert (len(index), index.num_features) == (2 * COUNT, 3)


def test_split_by_file_cannot_grow(tmp_path: Path, scores: Path) -> None:
    pack_more(tmp_path, scores, write_files(tmp_path, 0), append=False, split_by="file")
    with pytest.raises(PackError, match="pack all files again"):
        pack_more(tmp_path, scores, write_files(tmp_path, 30), split_by="file")


def test_nothing_to_append_to(tmp_path: Path, scores: Path) -> None:
    with pytest.raises(PackError, match="holds no data set to append to"):
        pack_more(tmp_path, scores, write_files(tmp_path, 0))
    with pytest.raises(ValueError, match="append and resume"):
        pack([str(tmp_path / "b000.pkl")], tmp_path / "out", append=True, resume=True)


def killed_append(tmp_path: Path, where: str) -> None:
    code = f"""
import os
from pathlib import Path
import wdsbench.shards.write.writer as writer
from wdsbench.pack import PackOptions, pack
if {where!r} == "before the index":
    index = writer.IndexFile
    writer.IndexFile = lambda **_: os._exit(9)
else:
    writer.FolderClaim.commit = lambda *_: os._exit(9)
root = Path({str(tmp_path)!r})
pack([str(root / "b030.pkl")], root / "out", scores=root / "s.csv", append=True,
     options=PackOptions(**{OPTIONS!r}))
"""
    process = start_code(code)
    process.communicate(timeout=60)
    assert process.returncode == 9


def test_a_kill_leaves_the_old_data_set(packed: Path, tmp_path: Path, scores: Path) -> None:
    before, old = contents(packed), rows_of(packed)
    write_files(tmp_path, 30)
    killed_append(tmp_path, "before the index")
    assert set(contents(packed)) > set(before)
    assert rows_of(packed) == old
    # Whoever writes next clears what was left: here `relabel`.
    index = DatasetIndex.open(packed)
    assert index.labels is not None
    replace_labels(
        packed, lambda i: RowLabels(i.columns["label"], i.columns["score"]), index.labels
    )
    assert contents(packed) == before
    killed_append(tmp_path, "before the index")
    pack_more(tmp_path, scores, tmp_path / "b030.pkl")
    assert len(DatasetIndex.open(packed)) == 2 * COUNT


def test_a_kill_after_the_index_leaves_the_new_one(
    packed: Path, tmp_path: Path, scores: Path
) -> None:
    write_files(tmp_path, 30)
    killed_append(tmp_path, "after the index")
    assert len(DatasetIndex.open(packed)) == 2 * COUNT
    pack_more(tmp_path, scores, write_files(tmp_path, 60))
    index = DatasetIndex.open(packed)
    assert len(rows_of(packed)) == 3 * COUNT
    assert sum(name.endswith(".bin") for name in contents(packed)) == 1
    assert len(index.file.provenance.appended) == 2
