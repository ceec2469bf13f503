"""Several processes that train together, started by ``torchrun``.

`open_ranks` joins them for the length of a block; without them there is one rank, and everything
here costs nothing. All ranks make the same calls in the same order. Work that can fail on one rank
alone is done in `Ranks.together`, which raises its error on all ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from wdsbench.errors import DetectorError, RankError

T = TypeVar("T")

#: Returns the picklable objects of all ranks, in the order of ranks.
Gather = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Ranks:
    """This process, number ``rank`` of the ``count`` that train together."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """True for the rank that writes files and draws bars."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Return every rank's picklable ``value``, in the order of ranks.

        As all methods, it raises RankError if a rank has ended or does not answer.
        """
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        with _lost(self):
            dist.all_gather_object(found, value)
        return found

    def add(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over ranks."""
        if self.count > 1:
            with _lost(self):
                dist.all_reduce(tensor)

    def guarded(self, work: Callable[[Gather], T]) -> T:
        """Return ``work(gather)``; ``work`` makes the same calls of ``gather`` on all ranks.

        Raises:
            DetectorError: ``work`` raised one on some rank; all ranks raise it.
        """
        if self.count == 1:
            return work(self.gather)

        def gather(value: Any) -> list[Any]:
            found = self.gather((None, value))
            for failure, _ in found:
                if failure is not None:
                    raise _RemoteError(failure)
            return [part for _, part in found]

        try:
            done = work(gather)
            gather(None)  # receives failures after the last gather of ``work``
        except _RemoteError as error:
            raise DetectorError(str(error)) from None
        except DetectorError as error:
            self.gather((str(error), None))
            raise
        return done

    def together(self, work: Callable[[], T]) -> list[T]:
        """Return the results of ``work()`` of every rank; errors are those of `guarded`."""
        return self.guarded(lambda gather: gather(work()))


class _RemoteError(Exception):
    """The message of another rank's failure."""


ALONE = Ranks()


@contextlib.contextmanager
def open_ranks(device: str, timeout_seconds: float) -> Iterator[Ranks]:
    """Join the ranks that the environment names; leave them at the end of the block.

    An existing process group is used as it is. A new one uses NCCL for GPUs, otherwise Gloo; a
    waiting rank gives up after ``timeout_seconds``.

    Raises:
        RankError: The ranks could not connect.
    """
    if dist.is_available() and dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    backend = "gloo" if device == "cpu" else "nccl"
    if device != "cpu":
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    except (RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise RankError(
            f"the ranks could not connect: {said}; start them with torchrun, or unset RANK and"
            " WORLD_SIZE"
        ) from error
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        with contextlib.suppress(RuntimeError):  # raised if other ranks have ended
            dist.destroy_process_group()


def choose_device(asked: str | None) -> str:
    """Return the device ``asked`` for (None: CUDA if available, otherwise the CPU).

    ValueError is raised if it does not exist.
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


def rank_device(asked: str | None) -> str:
    """Return the device of this rank: that of `choose_device`, but with several ranks ``cuda`` or
    None is the GPU of its local rank.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and asked in (None, "cuda") and torch.cuda.is_available():
        asked = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    return choose_device(asked)


@contextlib.contextmanager
def _lost(ranks: Ranks) -> Iterator[None]:
    """Convert the transport's error after a rank has failed."""
    try:
        yield
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise RankError(
            f"rank {ranks.rank} of {ranks.count} lost the others ({said}): one has ended or did not"
            " answer in time; see its own message, then continue with --resume"
        ) from error
