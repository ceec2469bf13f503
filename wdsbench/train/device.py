"""Where to compute."""

from __future__ import annotations

import torch


def choose_device(asked: str | None) -> str:
    """Return the device to compute on; None: CUDA where there is a device, else the CPU.

    Raises:
        ValueError: It is not there.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    allowed = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{gpu}" for gpu in range(gpus))]
    if asked is None:
        return "cuda" if gpus else "cpu"
    if asked not in allowed:
        raise ValueError(
            f"device is {asked!r}; allowed here: {', '.join(allowed)}"
            + ("" if gpus else " (torch finds no GPU)")
        )
    return asked
