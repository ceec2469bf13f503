"""The arrows between rooms point down only, and importing does nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "wdsbench"
CSRC = PACKAGE.parent / "csrc"

#: What every room may use.
FLOOR = {
    "records",
    "errors",
    "options",
    "progress",
    "files",
    "cores",
    "jsonlines",
    "processes",
    "_core",
}

#: Room -> rooms it may import (the floor apart).
ALLOWED: dict[str, set[str]] = {
    "traces": set(),
    "shards": set(),
    "stream": {"shards"},
    "slabs": set(),
    "detect": set(),
    "loader": {"stream", "slabs", "shards"},
    "pack": {"traces", "shards"},
    "llm": {"traces", "shards"},
    "view": {"traces", "stream", "detect", "shards"},
    "train": {"loader", "detect", "shards"},
    "jobs": {"llm", "pack", "train", "detect", "view", "shards", "traces"},
    "demo": {"detect", "train", "traces", "jobs"},
    "bench": {"loader", "stream", "shards", "detect"},
    "cli": {"bench", "demo", "jobs", "llm", "pack", "train", "detect", "view", "shards", "traces"},
}

#: Rooms that must work where torch is not installed.
WITHOUT_TORCH = (
    "wdsbench",
    "wdsbench.pack",
    "wdsbench.stream",
    "wdsbench.shards",
    "wdsbench.cli.main",
)


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [
                f"{module}.{alias.name}" if module == "wdsbench" else module for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("wdsbench.")}
    return rooms


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_arrows_point_down(room: str) -> None:
    for path in sorted((PACKAGE / room).rglob("*.py")):
        # The package's own name gives the version and the loader, which is fetched lazily.
        extra = imported_rooms(path) - ALLOWED[room] - FLOOR - {room, "__version__", "TraceLoader"}
        assert not extra, f"{path.relative_to(PACKAGE)} imports {sorted(extra)}"


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


def test_packing_and_streaming_import_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"for name in {WITHOUT_TORCH!r}: __import__(name)\n"
        "import wdsbench.traces.read"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
