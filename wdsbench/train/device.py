"""Choice of the device."""

from __future__ import annotations

import torch


def choose_device(asked: str | None) -> str:
    """Return the device ``asked`` for; None: CUDA if available, otherwise the CPU.

    Raises:
        ValueError: The device does not exist.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    allowed = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{gpu}" for gpu in range(gpus))]
    if asked is None:
        return "cuda" if gpus else "cpu"
    if asked not in allowed:
        raise ValueError(
            f"device is {asked!r}; must be one of {', '.join(allowed)}"
            + ("" if gpus else " (torch finds no GPU)")
        )
    return asked
