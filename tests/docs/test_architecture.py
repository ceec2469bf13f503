"""docs/architecture.md names rooms, arrows, files and objects that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_imports import ALLOWED, FLOOR

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for folder, suffix in (("wdsbench", "py"), ("csrc", "?pp"), ("tests", "py"))
    for path in sorted((ROOT / folder).rglob(f"*.{suffix}"))
)


def test_the_map_is_the_one_of_the_imports() -> None:
    table = PAGE.partition("| room |")[2].partition("\n\n")[0]
    rows = [line.removesuffix("|").split("|")[1:] for line in table.splitlines()[2:]]
    told = {room.strip(): set(re.findall(r"`(\w+)`", below)) for room, _, below in rows}
    floor = next(room for room in told if room.startswith("floor"))
    assert set(re.findall(r"`(\w+)`", floor)) == FLOOR | {"_core"}
    del told[floor]
    assert told == {f"`{room}`": below for room, below in ALLOWED.items()}


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:wdsbench|csrc|tests|tools|docs)/[\w./]*)`", PAGE)))
)
def test_the_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_names_exist() -> None:
    words = set(re.findall(r"\w+", SOURCES))
    for name in sorted(set(re.findall(r"`(?:_core\.)?([A-Za-z]\w{4,})`", PAGE))):
        assert name in words, name
