"""Memory for batches: host tensors that the decoder fills and a GPU copies from."""

from wdsbench.slabs.shared import Lease, SharedSlab, SlabCursor, SlabFullError
from wdsbench.slabs.slab import OrdinaryMemory, SlabPool

__all__ = ["Lease", "OrdinaryMemory", "SharedSlab", "SlabCursor", "SlabFullError", "SlabPool"]
