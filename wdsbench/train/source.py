"""The loader of training: its interface, and opening it for a split."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from wdsbench.detect.registry import LoaderNeeds
from wdsbench.errors import DecodeError, DetectorError
from wdsbench.loader.stats import LoaderStats
from wdsbench.records import Batch
from wdsbench.shards.format.kinds import KINDS
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.train.config import TrainConfig
from wdsbench.train.stop import StopRequest


class Loader(Protocol):
    """Batches of one split; `wdsbench.TraceLoader` is one. ``stats`` are of the latest epoch."""

    @property
    def index(self) -> DatasetIndex: ...
    @property
    def stats(self) -> LoaderStats: ...
    def __iter__(self) -> Iterator[Batch]: ...
    def __len__(self) -> int: ...
    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


#: Constructor of a loader, with the arguments of `wdsbench.TraceLoader`.
OpenLoader = Callable[..., Loader]


@dataclass(frozen=True)
class Source:
    """A data set, and the settings and the device its batches are read with."""

    shards: str | Path
    config: TrainConfig
    device: str
    open_loader: OpenLoader

    @contextlib.contextmanager
    def batches(
        self,
        split: str,
        needs: LoaderNeeds,
        layers: Sequence[int] | None = None,
        *,
        shuffled: bool = False,
    ) -> Iterator[Loader]:
        """Open a loader of ``split`` and close it at the end of the block.

        ``layers``: indices of stored layers; None: those of the settings.

        Raises:
            DetectorError: The data set does not have what ``needs`` asks for.
        """
        config = self.config
        layers = config.layers if layers is None else layers
        reads_tensor = needs.tensor is not None
        # Every trace has a "last" token, also where it is unknown whose states are stored.
        arguments = needs.arguments() if reads_tensor else needs.arguments() | {"tokens": "last"}
        try:
            loader = self.open_loader(
                self.shards,
                split=split,
                **arguments,
                layers=None if layers is None else list(layers),
                batch_size=config.batch_size,
                shuffle=config.shuffle if shuffled else 0,
                seed=config.seed,
                num_workers=config.num_workers if reads_tensor else 0,
                threads=config.threads,
                device=self.device if reads_tensor and self.device != "cpu" else None,
            )
        except DecodeError as error:
            # Raised on opening: the data set is sound but lacks what the detector reads.
            raise DetectorError(f"not available: {error}") from error
        with contextlib.closing(loader):
            yield loader


class _Asking:
    """A loader that asks a `StopRequest` before every batch."""

    def __init__(self, loader: Loader, stop: StopRequest) -> None:
        self._loader, self._stop = loader, stop

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            self._stop.ask()
            yield batch

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def asking(open_loader: OpenLoader, stop: StopRequest) -> OpenLoader:
    """Return ``open_loader``; if ``stop`` has a callback, its loaders ask before every batch."""
    if stop.cancel is None:
        return open_loader
    return lambda *given, **named: cast(Loader, _Asking(open_loader(*given, **named), stop))


def require_members(index: DatasetIndex, needs: LoaderNeeds) -> None:
    """Raise DetectorError, with the remedy, if a sample lacks a member kind of ``needs``, or if the
    data set has images and ``needs`` is for traces.
    """
    if index.tensor.name == "image" and "image" not in needs.kinds:
        raise DetectorError(f"not available: it scores traces; {KINDS['hidden'].remedy}")
    kinds = [KINDS[name] for name in needs.kinds]
    missing = [kind for kind in kinds if not index.has_member(kind.main)]
    if missing:
        words = "; ".join(f"not every sample has {kind.main}, {kind.remedy}" for kind in missing)
        raise DetectorError(f"not available: {words}")


def labels_digest(index: DatasetIndex) -> str:
    """Return the hash of the sample table, which identifies data and labels."""
    return str(index.file.table.xxh3)
