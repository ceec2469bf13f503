"""Limits of house style that no formatter holds: sizes, and plain English."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from statements import statements
from trials import FULL

ROOT = Path(__file__).parents[1]

FILE_LINES = 400
FUNCTION_LINES = 100

#: Idiom of the first versions; a few hits in another sense are allowed.
ODD = (
    *("anew", "is told", "are told", "told of", "stand in", "stands in", "stand beside"),
    *("stands beside", "stand for", "stands for", "go on", "goes on", "gone on", "allowed are"),
    *("allowed is", "of what is", "be they"),
)
ODD_HITS = 20
DEFINITION = re.compile(r"( *)(?:async def|def|class) ")


def python_files() -> Iterator[Path]:
    for folder in ("wdsbench", "tests", "tools", "examples"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def prose_files() -> Iterator[Path]:
    yield ROOT / "README.md"
    for folder, endings in (
        ("wdsbench", ("*.py", "*.pyi", "*.js")),
        ("csrc", ("*.hpp", "*.cpp")),
        ("docs", ("*.md",)),
    ):
        for ending in endings:
            yield from sorted((ROOT / folder).rglob(ending))


def test_files_are_short() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert sizes
    assert {str(path): size for path, size in sizes.items() if size > FILE_LINES} == {}


def may_be_long(source: str) -> bool:
    """Return True if the next definition that is no deeper is far from some definition."""
    lines = source.splitlines()
    found = [(n, match[1]) for n, line in enumerate(lines) if (match := DEFINITION.match(line))]
    for place, (first, indent) in enumerate(found):
        later = (n for n, other in found[place + 1 :] if len(other) <= len(indent))
        if next(later, len(lines)) - first > FUNCTION_LINES:
            return True
    return False


@pytest.mark.trials
def test_functions_are_short() -> None:
    long = []
    for path in python_files():
        source = path.read_text(encoding="utf-8")
        if not FULL and not may_be_long(source):
            continue
        for node in statements(source):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert long == []


def test_prose_is_plain() -> None:
    words = re.compile(rf"\b({'|'.join(ODD)})\b")
    hits = []
    for path in prose_files():
        text = path.read_text(encoding="utf-8").lower()
        if any(phrase in text for phrase in ODD):  # faster than the expression
            hits += [f"{path.relative_to(ROOT)}: {match[0]}" for match in words.finditer(text)]
    assert len(hits) <= ODD_HITS, hits
