"""Who reads: this process's place among ranks and workers, as WebDataset's splitters see it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from webdataset.utils import pytorch_worker_info


@dataclass(frozen=True)
class Consumer:
    """One reader of an epoch: a worker of a rank.

    Attributes:
        rank: In ``range(ranks)``.
        ranks: Training processes.
        worker: In ``range(workers)``.
        workers: Reading processes of each rank; 1 where the training process reads itself.
    """

    rank: int = 0
    ranks: int = 1
    worker: int = 0
    workers: int = 1

    @property
    def number(self) -> int:
        """Place of this reader in the deal: ``split_by_node`` deals to ranks first, then
        ``split_by_worker``.
        """
        return self.rank + self.ranks * self.worker

    @property
    def count(self) -> int:
        """Readers of the epoch."""
        return self.ranks * self.workers


#: Set in the reading processes that wdsbench starts itself.
_appointed: Consumer | None = None


def appoint(consumer: Consumer) -> None:
    """Make this process, which does nothing but read, the reader ``consumer``.

    WebDataset's splitters are told by their own variables.
    """
    global _appointed
    _appointed = consumer
    os.environ.update(
        RANK=str(consumer.rank),
        WORLD_SIZE=str(consumer.ranks),
        WORKER=str(consumer.worker),
        NUM_WORKERS=str(consumer.workers),
    )


def this_consumer() -> Consumer:
    """Return the place of this process.

    Raises:
        ValueError: The environment says otherwise than torch. WebDataset's splitters obey ``RANK``
            with ``WORLD_SIZE`` and ``WORKER`` with ``NUM_WORKERS`` before torch's own numbers;
            stray ones would leave out samples without a word.
    """
    if _appointed is not None:
        return _appointed
    stray = [name for name in ("WORKER", "NUM_WORKERS") if name in os.environ]
    if stray:
        raise ValueError(
            f"the environment sets {' and '.join(stray)}, which WebDataset takes for this process's"
            " share of the data; unset them"
        )
    rank, ranks, worker, workers = pytorch_worker_info()
    if ranks != 1 and (rank, ranks) != _torch_rank():
        raise ValueError(
            f"the environment sets RANK={rank} and WORLD_SIZE={ranks}, but torch.distributed is not"
            " initialised so; initialise it before the loader is used, or unset them"
        )
    return Consumer(rank, ranks, worker, workers)


def _torch_rank() -> tuple[int, int] | None:
    """Return torch's (rank, ranks); None where no process group is there.

    A worker process that was spawned has none; its training process has been checked.
    """
    import torch.distributed
    from torch.utils.data import get_worker_info

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if get_worker_info() is not None:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return None
