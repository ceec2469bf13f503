"""Fields of options dataclasses, which the command line is built from.

The dataclass is the only owner of an option's name, type, default and help text; ``cli.options``
makes a command's signature from it. A field without help is not an option of the command.
"""

from __future__ import annotations

from dataclasses import MISSING, field, fields
from typing import Any, TypeVar

T = TypeVar("T")


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    flag: str | None = None,
    metavar: str | None = None,
    comma: bool = False,
    argument: bool = False,
) -> Any:
    """Return a dataclass field that is an option of a command; required without a default.

    Args:
        default: The default.
        help: The help text.
        flag: The option's name, if it is not the field's.
        metavar: The value's name in the help text.
        comma: A tuple of words is given as a comma list; ``none`` is the empty one.
        argument: The option is a positional argument.
    """
    values = {"help": help, "flag": flag, "metavar": metavar, "comma": comma, "argument": argument}
    return field(default=default, metadata=values)


def part_of(kind: type[T], options: Any) -> T:
    """Return the fields of ``options`` that ``kind`` has, as one of ``kind``."""
    return kind(**{each.name: getattr(options, each.name) for each in fields(kind)})  # type: ignore[arg-type]
