"""The arrows between rooms point down only, and importing does nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from statements import statements

PACKAGE = Path(__file__).parents[1] / "wdsbench"
CSRC = PACKAGE.parent / "csrc"

#: Modules that every room may use; they import each other only.
FLOOR = {"records", "errors", "options", "progress", "files", "cores", "jsonlines", "processes"}

#: Rooms that may import the C++ extension.
CORE = {"traces", "shards", "stream", "loader", "bench"}

#: Room -> rooms it may import (the floor apart).
ALLOWED: dict[str, set[str]] = {
    "traces": set(),
    "images": set(),
    "shards": set(),
    "stream": {"shards"},
    "slabs": set(),
    "detect": set(),
    "loader": {"stream", "slabs", "shards"},
    "pack": {"images", "traces", "shards"},
    "llm": {"traces", "shards"},
    "view": {"traces", "stream", "detect", "shards", "images"},
    "train": {"loader", "detect", "images", "shards"},
    "jobs": {"llm", "pack", "train", "detect", "view", "shards", "traces", "images"},
    "demo": {"train", "traces", "jobs", "shards"},
    "bench": {"loader", "stream", "shards", "detect", "pack"},
    "cli": {
        "bench",
        "demo",
        "images",
        "jobs",
        "llm",
        "pack",
        "train",
        "detect",
        "view",
        "shards",
        "traces",
    },
}

#: Rooms whose every module must import where torch is not installed.
WITHOUT_TORCH = ("traces", "images", "shards", "stream", "pack")


def imported_names(path: Path) -> set[str]:
    """Return the rooms and floor modules that a file imports, anywhere in it."""
    found = set()
    for node in statements(path.read_text(encoding="utf-8")):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("wdsbench.")}
    return found - {"__version__"}


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_arrows_point_down(room: str) -> None:
    allowed = ALLOWED[room] | FLOOR | {room} | ({"_core"} if room in CORE else set())
    for path in sorted((PACKAGE / room).rglob("*.py")):
        extra = imported_names(path) - allowed
        assert not extra, f"{path.relative_to(PACKAGE)} imports {sorted(extra)}"


@pytest.mark.parametrize("name", sorted(FLOOR))
def test_the_floor_imports_nothing_above(name: str) -> None:
    assert imported_names(PACKAGE / f"{name}.py") <= FLOOR


def test_every_module_is_listed() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert modules == FLOOR | {"__init__", "__main__"}


def test_every_room_is_listed() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == set(ALLOWED)


#: C++ room -> rooms it may include.
CPP_ALLOWED: dict[str, set[str]] = {
    "bytes": set(),
    "half": set(),
    "npy": {"bytes"},
    "tar": {"bytes"},
    "files": {"bytes"},
    "batch": {"files", "half", "npy", "tar", "bytes"},
    # Edges are decoded like states: rules on npy headers and halves, bytes read from files.
    "graph": {"batch", "files", "half", "npy", "tar", "bytes"},
    "python": {"graph", "batch", "files", "half", "npy", "tar", "bytes"},
}


def test_cpp_includes_point_down() -> None:
    rooms = {path.name for path in CSRC.iterdir() if path.is_dir()}
    assert rooms == set(CPP_ALLOWED)
    for path in sorted(CSRC.rglob("*.[ch]pp")):
        included = re.findall(r'^#include "(\w+)/', path.read_text(encoding="utf-8"), re.M)
        extra = set(included) - CPP_ALLOWED[path.parent.name] - {path.parent.name}
        assert not extra, f"{path.relative_to(CSRC)} includes {sorted(extra)}"


def test_python_headers_stay_in_their_room() -> None:
    for path in CSRC.rglob("*.[ch]pp"):
        if path.parent.name != "python":
            text = path.read_text(encoding="utf-8")
            assert "pybind11" not in text, path
            assert "Python.h" not in text, path
            assert "torch" not in text, path


def test_rooms_import_without_torch() -> None:
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for room in WITHOUT_TORCH
        for path in sorted((PACKAGE / room).rglob("*.py"))
    ]
    assert len(modules) > 50
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        f"for name in {['wdsbench', *modules, 'wdsbench.jobs', 'wdsbench.cli.main']!r}:\n"
        "    __import__(name)\n"
        "assert callable(sys.modules['wdsbench.jobs'].pack)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
