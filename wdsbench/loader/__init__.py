"""Batches of a data set: joins the stream, the C++ decode and the memory of batches.

Every sample of a split is yielded exactly once per epoch, in an order that depends only on seed,
epoch, rank and workers; damage raises an error that names shard, member and byte. A batch costs one
copy of its bytes, from the page cache into reused memory.
"""

from wdsbench.loader.dataset import TraceDataset
from wdsbench.loader.loader import TraceLoader
from wdsbench.loader.stats import LoaderStats

__all__ = ["LoaderStats", "TraceDataset", "TraceLoader"]
