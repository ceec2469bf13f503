"""The place of this process among ranks and workers, as WebDataset's splitters see it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from webdataset.utils import pytorch_worker_info


@dataclass(frozen=True)
class Consumer:
    """One reader of an epoch: worker ``worker`` of ``workers`` of rank ``rank`` of ``ranks``.

    A training process without worker processes is the only worker of its rank.
    """

    rank: int
    ranks: int
    worker: int = 0
    workers: int = 1

    @property
    def number(self) -> int:
        """Number of this reader: ``split_by_node`` splits first, then ``split_by_worker``."""
        return self.rank + self.ranks * self.worker

    @property
    def count(self) -> int:
        return self.ranks * self.workers


#: Set in the reading processes that wdsbench starts itself.
_consumer: Consumer | None = None


def set_consumer(consumer: Consumer) -> None:
    """Make this worker process the reader ``consumer``.

    WebDataset's splitters read their own environment variables, which are set too.
    """
    global _consumer
    _consumer = consumer
    os.environ.update(
        RANK=str(consumer.rank),
        WORLD_SIZE=str(consumer.ranks),
        WORKER=str(consumer.worker),
        NUM_WORKERS=str(consumer.workers),
    )


def this_consumer() -> Consumer:
    """Return the place of this process.

    Raises:
        ValueError: The environment contradicts torch. WebDataset's splitters prefer ``RANK`` and
            ``WORKER`` of the environment, so wrong values would silently skip samples.
    """
    if _consumer is not None:
        return _consumer
    stray = [name for name in ("WORKER", "NUM_WORKERS") if name in os.environ]
    if stray:
        raise ValueError(
            f"the environment sets {' and '.join(stray)}, which WebDataset uses to split the"
            " data; unset them"
        )
    rank, ranks, worker, workers = pytorch_worker_info()
    if ranks != 1 and (rank, ranks) != _torch_rank():
        raise ValueError(
            f"the environment sets RANK={rank} and WORLD_SIZE={ranks}, but torch.distributed is not"
            " initialised with these; initialise it before the loader is used, or unset them"
        )
    return Consumer(rank, ranks, worker, workers)


def _torch_rank() -> tuple[int, int] | None:
    """Return torch's (rank, ranks), or the environment's in a DataLoader worker without a process
    group, whose training process has been checked; otherwise None.
    """
    import torch.distributed
    from torch.utils.data import get_worker_info

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if get_worker_info() is not None:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return None
