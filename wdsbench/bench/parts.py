"""The parts of the scenarios by name, as ``wdsbench bench SCENARIO --cases`` accepts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from wdsbench.bench.cold import cold_part
from wdsbench.bench.data import SHAPES
from wdsbench.bench.gpu import gpu_part
from wdsbench.bench.memory import memory_part
from wdsbench.bench.opening import opening_part
from wdsbench.bench.part import Part, Settings
from wdsbench.bench.stream import last_part, padded_part, stream_part

Measure = Callable[[Settings], Part]


def stream_parts() -> Mapping[str, Sequence[Measure]]:
    """Return the parts of ``wdsbench bench stream``, in the order in which they run."""
    return {
        "A": [partial(stream_part, SHAPES["A"])],
        "S": [partial(stream_part, SHAPES["S"])],
        "B": [padded_part],
        "B-last": [last_part],
        "open": [opening_part],
        "cold": [partial(cold_part, SHAPES["A"]), partial(cold_part, SHAPES["S"])],
        "memory": [memory_part],
        "gpu": [gpu_part],
    }


def graph_parts() -> Mapping[str, Sequence[Measure]]:
    """Return the parts of ``wdsbench bench graph``, in the order in which they run."""
    # These import torch-geometric, which the other scenario does not need.
    from wdsbench.bench.edges import edges_part
    from wdsbench.bench.gnn import gnn_part
    from wdsbench.bench.graph import graph_part

    return {"C": [graph_part], "edges": [edges_part], "gnn": [gnn_part]}


def image_parts() -> Mapping[str, Sequence[Measure]]:
    """Return the parts of ``wdsbench bench images``, in the order in which they run."""
    # These import tifffile and imagecodecs, which the other scenarios do not need.
    from wdsbench.bench import images

    rates = {str(count): [partial(images.rates_part, count)] for count in (50, 200, 800)}
    return {**rates, "memory": [images.memory_part], "pack": [images.pack_part]}


#: Scenario -> its parts.
SCENARIOS = {"stream": stream_parts, "graph": graph_parts, "images": image_parts}


def named(words: list[str], parts: Mapping[str, Sequence[Measure]]) -> list[Measure]:
    """Return the requested parts, in the order of ``parts``; ``all``: those it can run here."""
    unknown = [word for word in words if word not in (*parts, "all")]
    if unknown or not words:
        raise ValueError(f"--cases {','.join(words)!r}: not a list of {', '.join(parts)}, all")
    every = [name for name in parts if name != "gpu" or torch.cuda.is_available()]
    wanted = [name for name in parts if name in words or ("all" in words and name in every)]
    return [measure for name in wanted for measure in parts[name]]
