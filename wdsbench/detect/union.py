"""Operations on a disjoint union of graphs, without loops over graphs."""

from __future__ import annotations

import torch
from torch import Tensor


def graph_of_nodes(ptr: Tensor, num_nodes: int) -> Tensor:
    """Return the graph of each node, int64 ``[N]``; ``ptr``: int64 ``[G + 1]``, first node of each.

    ``num_nodes`` is an argument to avoid a GPU synchronisation.
    """
    graphs = torch.arange(ptr.numel() - 1, device=ptr.device)
    return torch.repeat_interleave(graphs, ptr.diff(), output_size=num_nodes)


def require_whole_samples(ptr: Tensor, num_layers: int) -> None:
    """Raise ValueError if the graphs of ``ptr`` are not ``num_layers`` per sample."""
    num_graphs = ptr.numel() - 1
    if num_graphs % num_layers:
        raise ValueError(
            f"{num_graphs} graphs are not whole samples of {num_layers} layers; "
            "the data set has another number of layers than the detector"
        )


def group_mean(values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return the mean of the rows of each group, float ``[num_groups, ...]``; 0 for empty groups.

    ``values``: float ``[R, ...]``; ``group``: int64 ``[R]``, the group of each row.
    """
    total = values.new_zeros(num_groups, *values.shape[1:]).index_add(0, group, values)
    count = values.new_zeros(num_groups).index_add(0, group, values.new_ones(group.shape))
    return total / count.clamp(min=1).view(-1, *[1] * (values.dim() - 1))
