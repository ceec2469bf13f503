"""The arguments of a loader, checked when it is made and not in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.cores import usable_cores
from wdsbench.loader.plan import DecodePlan
from wdsbench.loader.select import (
    Tokens,
    as_integer,
    check_layout,
    check_members,
    is_single,
    select_layers,
    select_tokens,
)
from wdsbench.shards.format.kinds import SKETCH
from wdsbench.shards.read.index import DatasetIndex

FIELDS = ("hidden", "logprobs", "meta", "sketch")
VERIFY = ("header", "hash")
WIDEN = ("host", "device")
MAX_DEFAULT_THREADS = 8


def make_plan(
    index: DatasetIndex,
    rows: NDArray[np.int64],
    *,
    fields: Sequence[str],
    layers: Sequence[int] | slice | int | None,
    tokens: Tokens,
    layout: str,
    threads: int | None,
    verify: str,
    raw: bool = False,
) -> DecodePlan:
    """Return the plan of batches over ``rows``; the arguments are those of ``TraceLoader``.

    Raises:
        ValueError: An argument outside its range. DecodeError: the rows cannot give what is asked
            for.
    """
    check_words(fields, FIELDS, "fields")
    check_words([verify], VERIFY, "verify")
    if verify == "hash" and not index.has_hashes:
        raise ValueError("verify='hash': tar files without an index have no hashes; use 'header'")
    asked = None
    if layout in ("graph", "union-graph"):
        tokens, asked = "all", f"layout={layout!r}"
    if "sketch" in fields:
        check_members(index, rows, "fields=('sketch',)", "sketch", (SKETCH,))
    ranges = select_tokens(index, rows, tokens, asked)
    check_layout(index, rows, layout, ranges, tokens)
    return DecodePlan(
        fields=tuple(fields),
        layers=select_layers(layers, index.num_layers),
        ranges=ranges,
        layout=layout,
        squeeze=is_single(tokens) and layout in ("stack", "separate"),
        threads=default_threads() if threads is None else at_least(threads, 1, "threads"),
        verify_hash=verify == "hash",
        raw=raw,
        heads=index.num_heads,
    )


def widens_on_device(widen: str, device: torch.device | None, index: DatasetIndex) -> bool:
    """Return whether states travel in float16 as stored.

    Raises:
        ValueError: No device to widen them on, or they are not stored so.
    """
    check_words([widen], WIDEN, "widen")
    if widen == "host":
        return False
    if device is None:
        raise ValueError("widen='device' needs a device")
    dtype = index.fields["hidden"].dtype
    if dtype != "<f2":
        raise ValueError(f"widen='device': states are stored as {dtype}, not as <f2")
    return True


def as_device(name: str | torch.device) -> torch.device:
    """Return a device.

    Raises:
        ValueError: torch does not know it.
    """
    try:
        return torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: {name!r} is not one torch knows, as cpu, cuda, cuda:1") from None


def at_least(value: int, least: int, name: str) -> int:
    """Return ``value`` as an ``int``.

    Raises:
        ValueError: It is not an integer, or too small.
    """
    number = as_integer(value)
    if number is None or number < least:
        raise ValueError(f"{name}: {value!r} is not an integer of at least {least}")
    return number


def check_words(words: Sequence[str], allowed: tuple[str, ...], name: str) -> None:
    """Raise ``ValueError`` for a word that is not allowed, ``TypeError`` for a bare string."""
    if isinstance(words, str):
        raise TypeError(f"{name}: pass a tuple of names, ({words!r},)")
    for word in words:
        if word not in allowed:
            raise ValueError(f"{name}: {word!r} is not one of {', '.join(allowed)}")


def default_threads() -> int:
    """Return the cores this process may use, at most MAX_DEFAULT_THREADS."""
    return min(usable_cores(), MAX_DEFAULT_THREADS)
