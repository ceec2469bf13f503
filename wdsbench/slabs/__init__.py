"""Memory of batches: host tensors that the decoder fills and a GPU copies from.

A slab is reused only after every view of it was dropped and every copy from it is done. Memory is
allocated once per loader; when all slabs are held, a batch costs an allocation or a copy instead.
"""

from wdsbench.slabs.shared import Lease, SharedSlab, SlabCursor, SlabFullError
from wdsbench.slabs.slab import BatchMemory, OrdinaryMemory, PoolMemory, SlabPool

__all__ = [
    "BatchMemory",
    "Lease",
    "OrdinaryMemory",
    "PoolMemory",
    "SharedSlab",
    "SlabCursor",
    "SlabFullError",
    "SlabPool",
]
