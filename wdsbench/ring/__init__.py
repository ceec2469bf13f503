"""Memory for batches: host tensors that the decoder fills and a GPU copies from."""

from wdsbench.ring.slab import SlabPool

__all__ = ["SlabPool"]
