"""How much faster is a GNN on one union graph per batch? Bound by arithmetic on a CPU, by kernel
launches on a GPU.

Part gnn: forward and backward of GINE + LSTM over one batch of C. ``union`` is the detector;
``per-layer`` calls the same modules once per layer, all tokens in both rounds; ``per-layer-cut``
reduces each layer to the nodes that its last tokens need, as the detector does. Collation is not
timed. With a CUDA device all three also run on it, with the suffix ``-gpu``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.data import Batch

from wdsbench.bench.data import SEED
from wdsbench.bench.graph import Graphs, graph_bytes, per_layer
from wdsbench.bench.graphs import GRAPHS, GraphShape, data_list, graph_trace
from wdsbench.bench.part import THREADS, Part, Settings, measured_rates, value_of
from wdsbench.bench.timing import Work
from wdsbench.detect.gnn import GNNDetector, reach_of
from wdsbench.detect.registry import DetectorShape

HIDDEN = 64


def gnn_part(settings: Settings, shape: GraphShape = GRAPHS) -> Part:
    """Return the rates of training steps; the scale does not change the batch."""
    traces = [data_list(graph_trace(shape, i)) for i in range(shape.batch_size)]
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    cases: dict[str, Callable[[], Work]] = {}
    for device in devices:
        cases |= _cases(traces, shape, device, "" if device == "cpu" else "-gpu")
    results = measured_rates(cases, settings)

    def rate(name: str) -> float:
        return value_of(results, name, "batches_per_s")

    return Part(
        name="gnn",
        title=f"gnn: GINE + LSTM of hidden {HIDDEN}, forward and backward,"
        f" {shape.batch_size} traces x {shape.layers} layers a batch",
        results=results,
        ratios={
            f"union_over_{name.replace('-', '_')}{suffix.replace('-', '_')}": rate(f"union{suffix}")
            / rate(f"{name}{suffix}")
            for suffix in ("", "-gpu")[: len(devices)]
            for name in ("per-layer", "per-layer-cut")
        },
        measure="batches_per_s",
        unit="batches/s",
        baseline="per-layer",
        facts={**asdict(shape), "hidden": HIDDEN, "threads": THREADS, "devices": devices},
    )


def over_union(detector: GNNDetector, unions: Graphs) -> Tensor:
    """Return the logits ``[B]`` of one union of B * L graphs."""
    (graph,) = unions
    logits: Tensor = detector(graph.x, graph.edge_index, graph.edge_attr, graph.ptr)
    return logits


def over_layers(detector: GNNDetector, unions: Graphs, *, cut: bool = False) -> Tensor:
    """Return the logits of L unions of B graphs, one layer at a time.

    All tokens are computed in both rounds; with ``cut`` only those that the last tokens need.
    """
    ends_of = _cut if cut else _whole
    ends = [ends_of(detector, graph, layer) for layer, graph in enumerate(unions)]
    logits: Tensor = detector.over_layers(torch.stack(ends, dim=1))
    return logits


#: ``over_layers`` of unions that are reduced to the nodes that their last tokens need.
over_cut_layers = partial(over_layers, cut=True)


def _whole(detector: GNNDetector, graph: Any, layer: int) -> Tensor:
    """Return ``[B, D + hidden]``: input and final state of each graph's last token."""
    raw, last = _scaled(detector, graph, layer), graph.ptr[1:] - 1
    nodes = detector.project(raw)
    weights = detector.scale_weights(graph.edge_attr)
    for module in (detector.first, detector.second):
        nodes = module(nodes, nodes, graph.edge_index, weights)
    return torch.cat([raw[last], nodes[last]], dim=-1)


def _cut(detector: GNNDetector, graph: Any, layer: int) -> Tensor:
    raw, last = _scaled(detector, graph, layer), graph.ptr[1:] - 1
    reach = reach_of(last, graph.edge_index, len(raw))
    nodes = detector.project(raw)
    weights = detector.scale_weights(graph.edge_attr)
    near = detector.first(nodes, nodes[reach.nodes], reach.first, weights[reach.first_edges])
    ends = detector.second(near, near[reach.last], reach.second, weights[reach.second_edges])
    return torch.cat([raw[last], ends], dim=-1)


def _scaled(detector: GNNDetector, graph: Any, layer: int) -> Tensor:
    return detector.scale.rows(graph.x, torch.full((len(graph.x),), layer, device=graph.x.device))


def _cases(
    traces: list[list[Any]], shape: GraphShape, device: str, suffix: str
) -> dict[str, Callable[[], Work]]:
    torch.manual_seed(SEED)
    detector = GNNDetector(DetectorShape(shape.layers, shape.features, HIDDEN)).to(device)
    labels = (torch.arange(len(traces)) % 2).float().to(device)
    union = [Batch.from_data_list([graph for graphs in traces for graph in graphs]).to(device)]
    layers = [graph.to(device) for graph in per_layer(traces)]

    def step(forward: Callable[..., Tensor], unions: Graphs) -> Callable[[], Work]:
        work = Work(len(traces), graph_bytes(unions), batches=1)

        def turn() -> Work:
            detector.zero_grad(set_to_none=True)
            loss = binary_cross_entropy_with_logits(forward(detector, unions), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            if device != "cpu":
                torch.cuda.synchronize()
            return work

        return turn

    return {
        f"union{suffix}": step(over_union, union),
        f"per-layer{suffix}": step(over_layers, layers),
        f"per-layer-cut{suffix}": step(over_cut_layers, layers),
    }
