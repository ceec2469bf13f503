"""The competitors: what people use today, written as their documentation shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from torch.utils.data import DataLoader, IterableDataset

#: Of an npy member as NumPy writes it for arrays of few axes.
NPY_HEADER_BYTES = 128


def webdataset_plain(shards: Path, batch_size: int) -> Iterator[torch.Tensor]:
    """Yield one epoch as webdataset's documentation shows it: decode, to tuple, batched."""
    urls = [str(path) for path in sorted(shards.glob("*.tar"))]
    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls), seed=0).shuffle(1000)
    samples = dataset.decode().to_tuple("hidden.npy", "meta.json")
    for arrays, _ in samples.batched(batch_size):
        yield torch.from_numpy(np.asarray(arrays)).float()


def webdataset_tuned(
    shards: Path, batch_size: int, shape: tuple[int, ...]
) -> Iterator[torch.Tensor]:
    """Yield one epoch tuned by hand: bytes by ``frombuffer``, halves stacked, one ``float()``."""
    urls = [str(path) for path in sorted(shards.glob("*.tar"))]
    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls), seed=0).shuffle(1000)
    halves: list[torch.Tensor] = []
    for sample in dataset:
        array = np.frombuffer(bytearray(sample["hidden.npy"]), np.float16, -1, NPY_HEADER_BYTES)
        halves.append(torch.from_numpy(array).view(shape))
        if len(halves) == batch_size:
            yield torch.stack(halves).float()
            halves = []
    if halves:
        yield torch.stack(halves).float()


class PtIterable(IterableDataset[tuple[torch.Tensor, float]]):
    """Samples out of ``.pt`` files, one file after the other."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._files = sorted(folder.glob("*.pt"))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield (states float32, label)."""
        for path in self._files:
            content: dict[str, Any] = torch.load(path, weights_only=True)
            for states, label in zip(content["sequences"], content["labels"], strict=True):
                yield states.float(), float(label)


def pt_iterable(folder: Path, batch_size: int) -> Iterator[torch.Tensor]:
    """Yield one epoch of ``.pt`` files through torch's ``DataLoader``."""
    for states, _ in DataLoader(PtIterable(folder), batch_size=batch_size):
        yield states
