"""Question, context and group of a trace are stored in its meta, and return with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import make_raw, write_pickle

from wdsbench.pack import PackOptions, pack
from wdsbench.pack.unpack import unpack
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample
from wdsbench.traces.read import read_traces

OPTIONS = PackOptions(attention=(), threads=1)
TEXTS = {"question": "Who?", "context": "It was Änn.", "group": "people"}


def metas(folder: Path) -> list[dict[str, object]]:
    index = DatasetIndex.open(folder)
    return [StoredSample(index, row).meta() for row in range(len(index))]


@pytest.mark.parametrize("file_format", ["pkl", "npz"])
def test_texts_go_into_the_meta_and_back(file_format: str, tmp_path: Path) -> None:
    raw = make_raw("a", seed=0) | TEXTS
    write_pickle(tmp_path / "b.pkl", [raw])
    pack([str(tmp_path / "b.pkl")], tmp_path / "out", options=OPTIONS)
    (meta,) = metas(tmp_path / "out")
    assert {name: meta[name] for name in TEXTS} == TEXTS
    unpack(tmp_path / "out", tmp_path / "back", file_format=file_format)
    (trace,) = read_traces(next((tmp_path / "back").iterdir()))
    assert {name: getattr(trace, name) for name in TEXTS} == TEXTS


def test_what_is_not_there_is_not_stored(tmp_path: Path) -> None:
    # Another writer's key of the same name may be anything.
    write_pickle(tmp_path / "b.pkl", [make_raw("a", seed=0) | {"question": ["Who", "?"]}])
    report = pack([str(tmp_path / "b.pkl")], tmp_path / "out", options=OPTIONS)
    (meta,) = metas(tmp_path / "out")
    assert not set(TEXTS) & set(meta)
    assert report.remarks == {"left out question, which is not text": 1}


def test_groups_of_the_score_file(tmp_path: Path) -> None:
    raws = [make_raw(name, seed=0) | {"group": "old"} for name in ("a", "b", "c")]
    write_pickle(tmp_path / "b.pkl", raws)
    (tmp_path / "s.csv").write_text("question_id,s,kind\na,1,x\nb,0,y\nc,0,x\n")
    options = PackOptions(attention=(), threads=1, group="kind")
    with pytest.raises(ValueError, match="group 'kind' is a column of the score file"):
        pack([str(tmp_path / "b.pkl")], tmp_path / "out", options=options)
    pack([str(tmp_path / "b.pkl")], tmp_path / "out", scores=tmp_path / "s.csv", options=options)
    found = {meta["question_id"]: meta["group"] for meta in metas(tmp_path / "out")}
    assert found == {"a": "x", "b": "y", "c": "x"}
