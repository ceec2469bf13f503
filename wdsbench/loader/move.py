"""A batch to a device, and 16-bit states to float32 once they are there."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from wdsbench.records import Batch


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with every tensor (and graph) on ``device``, hidden states float32.

    Copies from pinned memory do not wait.
    """
    moved: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if hasattr(value, "to"):
            moved[item.name] = value.to(device, non_blocking=True)
    there = replace(batch, **moved)
    if there.hidden is not None and there.hidden.dtype != torch.float32:
        there.hidden = there.hidden.float()
    if there.graph is not None and there.graph.x.dtype != torch.float32:
        there.graph.x = there.graph.x.float()
    if there.hidden_scale is not None:
        _apply_scale(there, there.hidden_scale)
        there.hidden_scale = None
    return there


def _apply_scale(batch: Batch, scale: torch.Tensor) -> None:
    """Multiply every layer's states by its factor; ``scale``: float32 ``[B, L]``."""
    if batch.graph is not None:
        nodes = batch.graph.ptr.diff()
        if batch.graph.x.dim() == 3:  # [N, L, D], a graph a sample
            batch.graph.x = batch.graph.x * scale.repeat_interleave(nodes, dim=0)[:, :, None]
            return
        # [N, D], graph = sample * L + layer
        batch.graph.x *= scale.reshape(-1).repeat_interleave(nodes)[:, None]
        return
    assert batch.hidden is not None
    if batch.offsets is not None and batch.lengths is not None:  # [L, sum T, D]
        batch.hidden *= scale.T.repeat_interleave(batch.lengths, dim=1)[:, :, None]
        return
    batch.hidden *= scale.view(*scale.shape, *[1] * (batch.hidden.dim() - 2))
