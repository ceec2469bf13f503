"""Several processes that train together: who they are, and what they tell each other.

`open_ranks` joins them (as `torchrun` has started them) for the length of a block; without them a
run is one rank, and everything here costs nothing. All ranks go through the same calls in the same
order: what could fail on one of them alone is done inside `Ranks.together`, which lets all of them
fail.
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

#: Takes a picklable object and returns those of all ranks, in the order of ranks.
Gather = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: In ``range(count)``.
        count: Processes; 1: nobody else is there.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes files and draws bars."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Return every rank's picklable ``value``, in the order of ranks.

        Raises:
            RankError: A rank is gone.
        """
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        with _lost(self):
            dist.all_gather_object(found, value)
        return found

    def add(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over ranks.

        Raises:
            RankError: A rank is gone.
        """
        if self.count > 1:
            with _lost(self):
                dist.all_reduce(tensor)

    def guarded(self, work: Callable[[Gather], T]) -> T:
        """Return ``work(gather)``, which may gather as often as it likes, on all ranks alike.

        Raises:
            DetectorError: ``work`` raised one on some rank; all raise it, wherever they were.
            RankError: A rank is gone.
        """
        if self.count == 1:
            return work(self.gather)

        def gather(value: Any) -> list[Any]:
            found = self.gather((None, value))
            for failure, _ in found:
                if failure is not None:
                    raise _ToldError(failure)
            return [part for _, part in found]

        try:
            done = work(gather)
            gather(None)  # who fails after the last of its own must still be heard
        except _ToldError as error:
            raise DetectorError(str(error)) from None
        except DetectorError as error:
            self.gather((str(error), None))
            raise
        return done

    def together(self, work: Callable[[], T]) -> list[T]:
        """Return what ``work()`` gives on every rank.

        Raises:
            DetectorError: It raised one on some rank; all raise it.
            RankError: A rank is gone.
        """
        return self.guarded(lambda gather: gather(work()))


class _ToldError(Exception):
    """Another rank has failed; its words."""


ALONE = Ranks()


@contextlib.contextmanager
def open_ranks(device: str, timeout_seconds: float) -> Iterator[Ranks]:
    """Join the ranks that the environment names; leave them when the block ends.

    A process group that is there already is used and left as it is. A new one talks through NCCL
    where ``device`` is a GPU, else through Gloo.

    Args:
        device: Of this rank.
        timeout_seconds: A rank that waits longer for the others gives up.

    Raises:
        RankError: They did not come together.
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
            f"the ranks did not come together: {said}; start them with torchrun, or unset RANK and"
            " WORLD_SIZE"
        ) from error
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        with contextlib.suppress(RuntimeError):  # of a group whose ranks are gone
            dist.destroy_process_group()


def rank_device(asked: str | None) -> str | None:
    """Return the device of this rank: where several share a machine and ``cuda`` or nothing was
    asked for, each has the GPU of its own number.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or asked not in (None, "cuda"):
        return asked
    if not torch.cuda.is_available():
        return asked
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


@contextlib.contextmanager
def _lost(ranks: Ranks) -> Iterator[None]:
    """Turn what the transport says when a rank is gone into an error that says so."""
    try:
        yield
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise RankError(
            f"rank {ranks.rank} of {ranks.count} lost the others ({said}): one has ended or did not"
            " answer in time; see its own message, then go on with --resume"
        ) from error
