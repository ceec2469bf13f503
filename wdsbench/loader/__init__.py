"""Batches out of a data set: joins the stream, the C++ decode and the memory of batches into one
iterator.
"""

from wdsbench.loader.dataset import TraceDataset
from wdsbench.loader.loader import TraceLoader
from wdsbench.loader.stats import LoaderStats

__all__ = ["LoaderStats", "TraceDataset", "TraceLoader"]
