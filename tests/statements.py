"""The statements of Python source, without a walk through their expressions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_PARTS = ("body", "orelse", "handlers", "finalbody", "cases")


def statements(source: str) -> Iterator[ast.AST]:
    """Yield every statement, at any depth, in no order; and handlers and cases, which hold some."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        for part in _PARTS:
            waiting += getattr(node, part, ())
        yield node
