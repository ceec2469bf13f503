"""Competing readers: common practice as their documentation shows, and the expert baseline.

The expert baseline is fifteen lines of good torch code, for equal samples and for whole traces: one
raw float16 file, mapped once; batches in preallocated memory; torch's ``copy_`` widens. It has no
ids, no checks, no workers and no resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import webdataset
from numpy.typing import NDArray
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

T = TypeVar("T")

#: Size of the npy header that NumPy writes for arrays of few axes.
NPY_HEADER_BYTES = 128


def webdataset_plain(shards: Path, batch_size: int) -> Iterator[torch.Tensor]:
    """Yield one epoch as webdataset's documentation shows: decode, to tuple, batched."""
    for arrays, _ in _decoded(shards).batched(batch_size):
        yield torch.from_numpy(np.asarray(arrays)).float()


def webdataset_plain_padded(shards: Path, batch_size: int) -> Iterator[torch.Tensor]:
    """Yield one epoch ``[B, L, Tmax, D]``; padded by hand, since webdataset does not pad."""
    for samples in _decoded(shards).batched(batch_size, collation_fn=None):
        states = [torch.from_numpy(array).float() for array, _ in samples]
        longest = max(trace.shape[1] for trace in states)
        yield torch.stack([pad(trace, (0, 0, 0, longest - trace.shape[1])) for trace in states])


def webdataset_plain_last(shards: Path, batch_size: int) -> Iterator[torch.Tensor]:
    """Yield one epoch ``[B, L, D]``: the last token of whole members."""
    for samples in _decoded(shards).batched(batch_size, collation_fn=None):
        yield torch.from_numpy(np.stack([array[:, -1] for array, _ in samples])).float()


def webdataset_tuned(
    shards: Path, batch_size: int, shape: tuple[int, ...]
) -> Iterator[torch.Tensor]:
    """Yield one epoch tuned by hand: ``frombuffer``, float16 stacked, one ``float()``."""
    for halves in _halves(shards, batch_size, shape):
        yield torch.stack(halves).float()


def webdataset_tuned_padded(
    shards: Path, batch_size: int, layers: int, features: int
) -> Iterator[torch.Tensor]:
    """Yield one epoch ``[B, L, Tmax, D]``: each trace widened directly into the batch."""
    for halves in _halves(shards, batch_size, (layers, -1, features)):
        longest = max(trace.shape[1] for trace in halves)
        batch = torch.empty(len(halves), layers, longest, features)
        for place, trace in zip(batch, halves, strict=True):
            place[:, : trace.shape[1]].copy_(trace)
            place[:, trace.shape[1] :].zero_()
        yield batch


def webdataset_tuned_last(
    shards: Path, batch_size: int, layers: int, features: int
) -> Iterator[torch.Tensor]:
    """Yield one epoch ``[B, L, D]``: only the last tokens are stacked and widened."""
    for halves in _halves(shards, batch_size, (layers, -1, features)):
        yield torch.stack([trace[:, -1] for trace in halves]).float()


def webdataset_workers(shards: Path, batch_size: int, workers: int) -> DataLoader[torch.Tensor]:
    """Return `webdataset_plain` in persistent worker processes that split the shards."""
    batches = _decoded(shards).batched(batch_size).map(_first_as_float)
    return DataLoader(batches, batch_size=None, num_workers=workers, persistent_workers=True)


class PtIterable(IterableDataset[tuple[torch.Tensor, float]]):
    """Samples of ``.pt`` files in order; the files are split among the workers."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._files = sorted(folder.glob("*.pt"))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield (states float32, label)."""
        here = get_worker_info()
        files = self._files if here is None else self._files[here.id :: here.num_workers]
        for path in files:
            content: dict[str, Any] = torch.load(path, weights_only=True)
            for states, label in zip(content["sequences"], content["labels"], strict=True):
                yield states.float(), float(label)


class PtMap(Dataset[tuple[torch.Tensor, float]]):
    """Samples of ``.pt`` files by number; the last file read is cached."""

    def __init__(self, folder: Path, samples: int, file_samples: int) -> None:
        self._files = sorted(folder.glob("*.pt"))
        self._samples = samples
        self._file_samples = file_samples
        self._loaded = -1
        self._content: dict[str, Any] = {}

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> tuple[torch.Tensor, float]:
        file, place = divmod(number, self._file_samples)
        if file != self._loaded:
            self._content = torch.load(self._files[file], weights_only=True)
            self._loaded = file
        return self._content["sequences"][place].float(), float(self._content["labels"][place])


def pt_iterable(folder: Path, batch_size: int) -> Iterator[torch.Tensor]:
    """Yield one epoch of ``.pt`` files through torch's ``DataLoader``."""
    return states_of(DataLoader(PtIterable(folder), batch_size=batch_size))


def pt_iterable_workers(folder: Path, batch_size: int, workers: int) -> DataLoader[Any]:
    """Return a loader of (states, labels) with persistent workers over the ``.pt`` files."""
    dataset = PtIterable(folder)
    return DataLoader(dataset, batch_size=batch_size, num_workers=workers, persistent_workers=True)


def pt_map(dataset: PtMap, batch_size: int) -> Iterator[torch.Tensor]:
    """Yield one epoch of ``.pt`` files in random order through torch's ``DataLoader``."""
    random = torch.Generator().manual_seed(0)
    return states_of(DataLoader(dataset, batch_size=batch_size, shuffle=True, generator=random))


def states_of(loader: DataLoader[Any]) -> Iterator[torch.Tensor]:
    """Yield the states of a loader of (states, labels)."""
    for states, _ in loader:
        yield states


def shuffled_samples(shards: Path) -> Any:
    """Return webdataset's shuffled stream of one epoch: dicts of members' bytes."""
    urls = [str(path) for path in sorted(shards.glob("*.tar"))]
    return webdataset.WebDataset(urls, shardshuffle=len(urls), seed=0).shuffle(1000)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of ``size`` items; the last may be shorter."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def _decoded(shards: Path) -> Any:
    return shuffled_samples(shards).decode().to_tuple("hidden.npy", "meta.json")


def _first_as_float(batch: tuple[NDArray[np.float16], Any]) -> torch.Tensor:
    return torch.from_numpy(np.asarray(batch[0])).float()


def _halves(shards: Path, batch_size: int, shape: tuple[int, ...]) -> Iterator[list[torch.Tensor]]:
    """Yield batches of float16 views of the members' bytes."""
    arrays = (
        np.frombuffer(bytearray(sample["hidden.npy"]), np.float16, -1, NPY_HEADER_BYTES)
        for sample in shuffled_samples(shards)
    )
    return batched((torch.from_numpy(array).view(shape) for array in arrays), batch_size)


#: Number of preallocated batches, filled in turn.
BATCHES = 4


class ExpertReader:
    """Batches ``(states float32 [B, ...], labels float32 [B])`` of one epoch in random order."""

    def __init__(self, file: Path, shape: tuple[int, ...], batch_size: int) -> None:
        """Map ``file``: float16 ``[n, *shape]``."""
        flat = np.memmap(file, np.float16, "c")
        self._data = torch.from_numpy(flat).view(-1, *shape)
        self._labels = torch.arange(len(self._data)) % 2
        self._batches = [torch.zeros(batch_size, *shape) for _ in range(BATCHES)]
        self._random = torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches; each is valid until three more have been requested."""
        order = torch.randperm(len(self._data), generator=self._random)
        for number, rows in enumerate(torch.split(order, len(self._batches[0]))):
            batch = self._batches[number % len(self._batches)][: len(rows)]
            for place, row in enumerate(rows.tolist()):
                batch[place].copy_(self._data[row])
            yield batch, self._labels[rows].float()


class ExpertTraces:
    """Batches ``(states float32 [B, L, Tmax, D], lengths int64 [B])``, padded with zeros."""

    def __init__(
        self, file: Path, tokens: Sequence[int], layers: int, features: int, batch_size: int
    ) -> None:
        """Map ``file``: concatenated float16 traces ``[L, T, D]``, T from ``tokens``."""
        flat = torch.from_numpy(np.memmap(file, np.float16, "c"))
        sizes = [layers * count * features for count in tokens]
        self._traces = [part.view(layers, -1, features) for part in torch.split(flat, sizes)]
        self._lengths = torch.tensor(tokens)
        self._shape = (layers, features)
        self._batch_size = batch_size
        most = batch_size * layers * max(tokens) * features
        self._batches = [torch.zeros(most) for _ in range(BATCHES)]
        self._next = 0
        self._random = torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches; each is valid until three more have been requested."""
        order = torch.randperm(len(self._traces), generator=self._random)
        for rows in torch.split(order, self._batch_size):
            yield self.padded(rows.tolist()), self._lengths[rows]

    def padded(self, rows: Sequence[int]) -> torch.Tensor:
        """Return ``[len(rows), L, Tmax, D]``, valid until four more have been requested."""
        traces = [self._traces[row] for row in rows]
        longest = max(trace.shape[1] for trace in traces)
        batch = self._batch((len(rows), self._shape[0], longest, self._shape[1]))
        for place, trace in enumerate(traces):
            batch[place, :, : trace.shape[1]].copy_(trace)
            batch[place, :, trace.shape[1] :].zero_()
        return batch

    def last_tokens(self) -> Iterator[torch.Tensor]:
        """Yield ``[B, L, D]``, the last token of every layer, of one epoch in random order."""
        order = torch.randperm(len(self._traces), generator=self._random)
        for rows in torch.split(order, self._batch_size):
            batch = self._batch((len(rows), *self._shape))
            for place, row in enumerate(rows.tolist()):
                batch[place].copy_(self._traces[row][:, -1])
            yield batch

    def _batch(self, shape: tuple[int, ...]) -> torch.Tensor:
        self._next = (self._next + 1) % BATCHES
        return self._batches[self._next][: torch.Size(shape).numel()].view(shape)
