"""Moves a batch to a device, where 16-bit states become float32."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from wdsbench.records import Batch


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with every tensor (and graph) on ``device``, hidden states float32.

    Copies from pinned memory are asynchronous.
    """
    moved: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if hasattr(value, "to"):
            moved[item.name] = value.to(device, non_blocking=True)
    there = replace(batch, **moved)
    if there.hidden is not None:
        there.hidden = _widened(there.hidden, there.hidden_scale)
    if there.graph is not None:
        there.graph.x = _widened(there.graph.x, there.hidden_scale)
    there.hidden_scale = None
    return there


def _widened(states: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Return float32 states, multiplied by a scale that broadcasts against them."""
    states = states.float()
    return states if scale is None else states.mul_(scale)
