"""Signatures of commands built from options dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from wdsbench.cli.options import command_of
from wdsbench.options import option, part_of


@dataclass(frozen=True, kw_only=True)
class Base:
    rate: float = option(0.5, "A rate.")
    hidden: int = 3


@dataclass(frozen=True, kw_only=True)
class Everything(Base):
    data: Path = option(help="A folder.", argument=True)
    name: str = option(help="A name.")
    form: str = option("npz", "A format.", flag="--format")
    limit: int | None = option(None, "A limit.")
    layers: tuple[int, ...] | None = option(None, "Layers.")
    kinds: tuple[str, ...] = option(("a", "b"), "Kinds.", comma=True)
    files: tuple[str, ...] = option((), "Files.")
    fast: bool = option(False, "Be fast.")
    journal: bool = option(True, "Keep a journal.")
    score: str | float = option("keep", "A word or a number.")


def invoke(*words: str) -> tuple[Any, Any]:
    """Return (options, as_json) of a command line, and the result."""
    seen: list[Any] = []

    def run(options: Everything, as_json: bool) -> None:
        """Do everything."""
        seen.extend([options, as_json])

    app = typer.Typer(rich_markup_mode=None)
    app.command()(command_of(run))
    result = CliRunner().invoke(app, list(words))
    return (seen or None), result


def test_defaults_are_those_of_the_dataclass() -> None:
    seen, _ = invoke("folder", "--name", "x")
    assert seen == [Everything(data=Path("folder"), name="x"), False]


def test_every_type_is_parsed() -> None:
    words = "--format pkl --limit 3 --layers 0,-1 --kinds a,c --files x,y --files z --score 1"
    seen, _ = invoke(
        "folder", "--name=x", *words.split(), "--fast", "--no-journal", "--rate=1", "--json"
    )
    assert seen == [
        Everything(
            data=Path("folder"),
            name="x",
            form="pkl",
            limit=3,
            layers=(0, -1),
            kinds=("a", "c"),
            files=("x,y", "z"),
            fast=True,
            journal=False,
            rate=1.0,
            score="1",
        ),
        True,
    ]
    assert part_of(Base, seen[0]) == Base(rate=1.0)


def test_none_is_the_empty_list() -> None:
    seen, _ = invoke("folder", "--name=x", "--kinds=none")
    assert seen is not None
    assert seen[0].kinds == ()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--kinds", ","], "--kinds ',' is empty; pass none to keep none."),
        (["--layers", "x"], "--layers 'x' is not a comma list of integers; write --layers 0,15."),
    ],
)
def test_errors_name_the_option(words: list[str], error: str) -> None:
    seen, result = invoke("folder", "--name=x", *words)
    assert seen is None
    assert str(result.exception) == error


def test_fields_without_help_are_not_options() -> None:
    _, result = invoke("--help")
    assert "--hidden" not in result.output
    assert "Do everything." in result.output
    for name in ("--format", "--no-journal", "--rate", "--fast"):
        assert name in result.output
    assert "--no-fast" not in result.output
    for missing in ([], ["folder"], ["--name=x"]):
        assert invoke(*missing)[1].exit_code == 2
