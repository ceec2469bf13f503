"""The signature of a command, built from its options dataclass.

Each field with help text becomes an option. ``bool`` gives a flag ``--x`` (and ``--no-x`` if the
default is True), ``tuple[int, ...]`` a comma list of integers, ``tuple[str, ...]`` an option that
may be given several times.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import typer

from wdsbench.cli.terminal import words

INTEGERS = tuple[int, ...]
WORDS = tuple[str, ...]


def command_of(run: Callable[..., None]) -> Callable[..., None]:
    """Return a typer command that builds the options of ``run`` and calls it.

    ``run`` takes ``options``, a dataclass, and optionally ``as_json``, which adds ``--json``.
    """
    hints = typing.get_type_hints(run)
    kind = hints["options"]
    types_of = typing.get_type_hints(kind)
    shown = [field for field in dataclasses.fields(kind) if field.metadata.get("help")]
    shown.sort(key=lambda field: field.default is not dataclasses.MISSING)
    parameters = [_parameter(field, types_of[field.name]) for field in shown]
    if "as_json" in hints:
        info = typer.Option(False, "--json", help="Print the report as one line of JSON.")
        parameters.append(_keyword("as_json", bool, info))

    def command(**values: Any) -> None:
        extra = {"as_json": values.pop("as_json")} if "as_json" in hints else {}
        given = {
            field.name: _value(field, types_of[field.name], values[field.name]) for field in shown
        }
        run(kind(**given), **extra)

    command.__doc__ = run.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(field: dataclasses.Field[Any], kind: Any) -> inspect.Parameter:
    metadata = field.metadata
    default: Any = ... if field.default is dataclasses.MISSING else field.default
    plain, optional = _without_none(kind)
    flag, value = _flag(field), f"<{plain.__name__.lower()}>"
    if plain == INTEGERS:
        default = ",".join(map(str, default)) if isinstance(default, tuple) else default
        plain, value = str, "<int,...>"
    elif plain == WORDS:
        plain = list[str]
        default = list(default) if isinstance(default, tuple) else default
        value = "<str,...>" if metadata.get("comma") else "<str>"
    elif plain is bool:
        flag = f"{flag}/--no-{flag.removeprefix('--')}" if default is True else flag
    positional = metadata.get("argument")
    metavar = metadata.get("metavar") or (field.name.upper() if positional else value)
    texts = {"help": metadata["help"], "metavar": None if plain is bool else metavar}
    info = typer.Argument(default, **texts) if positional else typer.Option(default, flag, **texts)
    return _keyword(field.name, plain | None if optional else plain, info)


def _keyword(name: str, annotation: Any, info: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=info, annotation=annotation)


def _value(field: dataclasses.Field[Any], kind: Any, given: Any) -> Any:
    plain, _ = _without_none(kind)
    flag = _flag(field)
    if given is None:
        return None
    if plain == INTEGERS:
        try:
            return tuple(int(word) for word in words(given))
        except ValueError:
            raise ValueError(
                f"{flag} {given!r} is not a comma list of integers; write {flag} 0,15."
            ) from None
    if plain == WORDS and field.metadata.get("comma"):
        found = [word for text in given for word in words(text)]
        if not found:
            raise ValueError(f"{flag} {','.join(given)!r} is empty; pass none to keep none.")
        return () if found == ["none"] else tuple(found)
    return tuple(given) if plain == WORDS else given


def _flag(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("flag") or f"--{field.name.replace('_', '-')}")


def _without_none(kind: Any) -> tuple[Any, bool]:
    """Return a type without None, and True if None was in it."""
    if not isinstance(kind, types.UnionType):
        return kind, False
    plain = [each for each in typing.get_args(kind) if each is not type(None)]
    return plain[0], len(plain) < len(typing.get_args(kind))
