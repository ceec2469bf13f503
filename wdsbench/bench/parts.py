"""The parts of ``wdsbench bench stream`` by name; those of ``graph`` are in `graph_parts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from wdsbench.bench.cold import cold_part
from wdsbench.bench.data import SHAPES
from wdsbench.bench.gpu import gpu_part
from wdsbench.bench.memory import memory_part
from wdsbench.bench.opening import opening_part
from wdsbench.bench.padded import last_part, padded_part
from wdsbench.bench.part import Part, Settings
from wdsbench.bench.stream import stream_part

Parts = Mapping[str, list[Callable[[Settings], Part]]]

#: Word of ``--cases`` -> what it measures, in this order.
PARTS: Parts = {
    "A": [partial(stream_part, SHAPES["A"])],
    "S": [partial(stream_part, SHAPES["S"])],
    "B": [padded_part],
    "B-last": [last_part],
    "open": [opening_part],
    "cold": [partial(cold_part, SHAPES["A"]), partial(cold_part, SHAPES["S"])],
    "memory": [memory_part],
    "gpu": [gpu_part],
}

#: Every part that this machine can run.
ALL = "all"


def named(words: list[str], parts: Parts = PARTS) -> list[Callable[[Settings], Part]]:
    """Return what ``words`` ask for, in the order of ``parts``.

    Raises:
        ValueError: A word is no part, or there is none.
    """
    unknown = [word for word in words if word not in parts and word != ALL]
    if unknown or not words:
        raise ValueError(f"--cases {','.join(words)!r}: not a list of {', '.join(parts)}, {ALL}")
    every = [name for name in parts if name != "gpu" or torch.cuda.is_available()]
    wanted = [name for name in parts if name in words or (ALL in words and name in every)]
    return [measure for name in wanted for measure in parts[name]]
