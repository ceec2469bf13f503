"""Which versions of ``index.json`` are read, and which additions keep the version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import make_dataset

from wdsbench.errors import ShardError
from wdsbench.shards.format.index import FORMAT_VERSION
from wdsbench.shards.read.index import DatasetIndex


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=12).folder


def edited(folder: Path, out: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    shutil.copytree(folder, out)
    content = json.loads((out / "index.json").read_bytes())
    change(content)
    (out / "index.json").write_text(json.dumps(content))
    return out


def test_the_written_version_is_read(folder: Path) -> None:
    assert DatasetIndex.open(folder).file.wdsbench_format == FORMAT_VERSION == 1


@pytest.mark.parametrize("version", [2, 99])
def test_newer_versions_are_refused_whatever_else_they_hold(
    folder: Path, tmp_path: Path, version: int
) -> None:
    def change(content: dict[str, Any]) -> None:
        content.clear()
        content.update(wdsbench_format=version, blocks=[])

    out = edited(folder, tmp_path / "new", change)
    with pytest.raises(ShardError, match=f"format {version}, .* 1 to 1; install a newer wdsbench"):
        DatasetIndex.open(out)


def test_version_0_is_refused(folder: Path, tmp_path: Path) -> None:
    out = edited(folder, tmp_path / "old", lambda c: c.update(wdsbench_format=0))
    with pytest.raises(ShardError, match="format 0, expected 1 to 1; pack again"):
        DatasetIndex.open(out)


ADDITIONS: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("a key of provenance", lambda c: c["provenance"].update(machine={"name": "x"})),
    ("a field", lambda c: c["fields"].update(gates={"dtype": "<f4", "shape": [], "samples": 0})),
    (
        "a column",
        lambda c: c["table"]["columns"].append(
            {"name": "weight", "dtype": "<f4", "shape": [0], "offset_bytes": 0}
        ),
    ),
]


@pytest.mark.parametrize("change", [row[1] for row in ADDITIONS], ids=[row[0] for row in ADDITIONS])
def test_additions_keep_the_version(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    index = DatasetIndex.open(edited(folder, tmp_path / "more", change))
    assert len(index) == 12
    written = json.loads(index.file.to_bytes())
    assert (
        written["provenance"]
        == json.loads((index.folder / "index.json").read_bytes())["provenance"]
    )


def test_the_index_is_written_as_it_was_read(folder: Path) -> None:
    assert DatasetIndex.open(folder).file.to_bytes() == (folder / "index.json").read_bytes()
