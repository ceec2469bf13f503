"""The arguments that TraceLoader and TraceDataset share, checked before the first epoch."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.cores import usable_cores
from wdsbench.loader.batch_order import BatchOrder
from wdsbench.loader.decode import RAW_DTYPES, field_names
from wdsbench.loader.layouts import Layout
from wdsbench.loader.plan import DecodePlan, Tokens, as_integer, require_kind, select_tokens
from wdsbench.shards.format.kinds import TENSORS, loader_kinds
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_index, open_shards

Layers = Sequence[int] | slice | int | None

MAX_DEFAULT_THREADS = 8


@dataclass(frozen=True)
class OpenSplit:
    """A split's batches: ``batch_bytes`` are the bytes of (states, edges) of the largest one."""

    order: BatchOrder
    layout: Layout
    access: str
    batch_bytes: tuple[int, int]

    def open_files(self) -> _core.ShardFiles:
        """Return the shards; each is opened when it is first read."""
        return open_shards(self.order.index, access=self.access)

    def read_ahead(self, files: _core.ShardFiles) -> _core.ReadAhead | None:
        """Return a reader ahead of ``files``; None if most of their bytes are not requested."""
        return None if self.access == "sparse" else _core.ReadAhead(files)


class SampleOptions(TypedDict, total=False):
    """Arguments of ``TraceLoader`` that ``TraceDataset`` has too, with the same defaults."""

    fields: Sequence[str]
    layers: Layers
    tokens: Tokens
    shuffle: int
    seed: int
    threads: int | None
    verify: str


def open_split(
    path: str | Path | Sequence[str | Path],
    split: str | None,
    kind: type[Layout],
    batch_size: int,
    *,
    drop_last: bool = False,
    widen: str = "host",
    device: torch.device | None = None,
    fields: Sequence[str] = ("hidden",),
    layers: Layers = None,
    tokens: Tokens = "last_answer",
    shuffle: int = 1000,
    seed: int = 0,
    threads: int | None = None,
    verify: str = "header",
) -> OpenSplit:
    """Open a data set; arguments and errors are those of ``TraceLoader``."""
    index = open_index(path)
    order = BatchOrder(
        index,
        split,
        at_least(batch_size, 1, "batch_size"),
        drop_last,
        at_least(shuffle, 0, "shuffle"),
        operator.index(seed),
    )
    rows = order.rows()
    check_words(fields, field_names(), "fields")
    check_words([verify], ("header", "hash"), "verify")
    if verify == "hash" and not index.has_hashes:
        raise ValueError("verify='hash': tar files without an index have no hashes; use 'header'")
    if kind.tensor != index.tensor.name and (kind.tokens is not None or set(TENSORS) & set(fields)):
        require_kind(index, rows, kind.tensor, f"layout={kind.name!r}")
    for name in fields:
        if name in loader_kinds() or (name in TENSORS and name != index.tensor.name):
            require_kind(index, rows, name, f"fields=({name!r},)")
    if kind.tokens is not None:
        tokens = kind.tokens
    plan = DecodePlan(
        index=index,
        fields=tuple(fields),
        layers=select_layers(layers, index.num_layers),
        tokens=tokens,
        ranges=select_tokens(
            index, rows, tokens, None if kind.tokens is None else f"layout={kind.name!r}"
        ),
        threads=(
            min(usable_cores(), MAX_DEFAULT_THREADS)
            if threads is None
            else at_least(threads, 1, "threads")
        ),
        verify_hash=verify == "hash",
        raw=_widens_on_device(widen, device, index),
    )
    layout = kind(plan)
    layout.check(rows)
    sizes = layout.bytes(rows, order.batch_size) if layout.has_tensor and rows.size else (0, 0)
    return OpenSplit(order, layout, plan.access(rows), sizes)


def select_layers(layers: Layers, num_layers: int) -> NDArray[np.int64]:
    """Return the requested layers as int64 indices; negative ones count from the last."""
    every = np.arange(num_layers, dtype=np.int64)
    if layers is None:
        return every
    if isinstance(layers, slice):
        chosen = every[layers]
    else:
        one = as_integer(layers)
        wanted = list(layers) if one is None and isinstance(layers, Sequence) else [layers]
        indices = [as_integer(layer) for layer in wanted]
        for layer, place in zip(wanted, indices, strict=True):
            if place is None or not -num_layers <= place < num_layers:
                raise ValueError(f"layers: {layer!r} is not one of the {num_layers} stored")
        chosen = every[np.array(indices, np.int64)]
    if not chosen.size:
        raise ValueError(f"layers: {layers!r} selects none of the {num_layers} stored")
    return chosen


def _widens_on_device(widen: str, device: torch.device | None, index: DatasetIndex) -> bool:
    """Return True if states or images are copied as stored and widened on the device."""
    check_words([widen], ("host", "device"), "widen")
    if widen == "host":
        return False
    if device is None:
        raise ValueError("widen='device' needs a device")
    dtype = index.fields[index.tensor.name].dtype
    if dtype not in RAW_DTYPES:
        raise ValueError(f"widen='device': states are stored as {dtype}, not as <f2")
    return True


def as_device(name: str | torch.device) -> torch.device:
    """Return the device of this name; ValueError if torch does not have it."""
    try:
        return torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"device: {name!r} is not a torch device, such as cpu, cuda, cuda:1"
        ) from None


def at_least(value: int, least: int, name: str) -> int:
    """Return ``value`` as an ``int``; ValueError if it is not an integer, or too small."""
    number = as_integer(value)
    if number is None or number < least:
        raise ValueError(f"{name} is {value!r}; must be an integer of at least {least}")
    return number


def check_words(words: Sequence[str], expected: Sequence[str], name: str) -> None:
    """Raise ``ValueError`` for an unknown word, ``TypeError`` for a bare string."""
    if isinstance(words, str):
        raise TypeError(f"{name}: pass a tuple of names, ({words!r},)")
    for word in words:
        if word not in expected:
            raise ValueError(f"{name}: {word!r} is not one of {', '.join(expected)}")
