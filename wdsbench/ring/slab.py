"""Host memory of a batch, pinned where there is a GPU.

Pinned blocks come from torch's caching host allocator, which tracks the copies made from them and
reuses a block only when they are done; so a batch may be dropped while its ``non_blocking`` copy
is under way.
"""

from __future__ import annotations

import torch


def host_tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return an uninitialised, C-contiguous host tensor, pinned if CUDA is available and not in a
    worker process.
    """
    in_worker = torch.utils.data.get_worker_info() is not None
    return torch.empty(shape, dtype=dtype, pin_memory=torch.cuda.is_available() and not in_worker)
