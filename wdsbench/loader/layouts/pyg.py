"""A ``torch_geometric.data.Batch`` from tensors, without a Python object per graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.loader.layouts.layout import BatchTensors


def graph_batch(tensors: BatchTensors, x: torch.Tensor, node_counts: NDArray[np.int64]) -> Any:
    """Return the union of G graphs as PyG would have collated them.

    Args:
        tensors: Edges, with indices into the union, and the number of edges of each graph.
        x: float32 ``[N, ...]``.
        node_counts: int64 ``[G]``.

    Returns:
        ``torch_geometric.data.Batch`` whose ``get_example``, ``to_data_list``, ``to``, ``ptr`` and
        ``num_graphs`` work. ``_slice_dict`` and ``_inc_dict`` are what ``separate`` needs to undo
        the collation: where each graph's entries start, and what was added to its indices.
    """
    from torch_geometric.data import Batch, Data

    nodes = torch.from_numpy(np.concatenate([[0], np.cumsum(node_counts)]))
    assert tensors.edge_counts is not None
    edges = torch.from_numpy(np.concatenate([[0], np.cumsum(tensors.edge_counts)]))
    graphs = len(node_counts)
    batch = Batch(
        _base_cls=Data,
        x=x,
        edge_index=tensors.edge_index,
        edge_attr=tensors.edge_attr,
        batch=torch.from_numpy(np.repeat(np.arange(graphs), node_counts)),
        ptr=nodes,
    )
    batch._num_graphs = graphs
    batch._slice_dict = {"x": nodes, "edge_index": edges, "edge_attr": edges}
    none = torch.zeros(graphs, dtype=torch.int64)
    batch._inc_dict = {"x": none, "edge_index": nodes[:-1], "edge_attr": none}
    return batch
