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


def this_consumer() -> Consumer:
    """Return the place of this process.

    Raises:
        RuntimeError: ``WORKER`` and ``NUM_WORKERS`` are set: WebDataset's splitters obey them
            before torch's own worker numbers and would drop samples without a word.
    """
    stray = [name for name in ("WORKER", "NUM_WORKERS") if name in os.environ]
    if stray:
        raise RuntimeError(
            f"the environment sets {' and '.join(stray)}, which WebDataset takes for this "
            f"process's share of the data;"
            " unset them"
        )
    rank, ranks, worker, workers = pytorch_worker_info()
    return Consumer(rank, ranks, worker, workers)
