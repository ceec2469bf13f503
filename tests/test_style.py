"""Limits of house style that no formatter holds: sizes, and plain English."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

FILE_LINES = 400
FUNCTION_LINES = 100

#: Idiom of the first versions; a few hits in another sense are allowed.
ODD = re.compile(
    r"\b(anew|(is|are) told|told of|stands? (in|beside|for)|(goes?|gone) on"
    r"|allowed (are|is)|of what is|be they)\b",
    re.IGNORECASE,
)
ODD_HITS = 20


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


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements within a node, at any depth."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.expr):
            yield from statements(child)


def test_functions_are_short() -> None:
    long = []
    for path in python_files():
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert long == []


def test_prose_is_plain() -> None:
    hits = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in prose_files()
        for match in ODD.finditer(path.read_text(encoding="utf-8"))
    ]
    assert len(hits) <= ODD_HITS, hits
