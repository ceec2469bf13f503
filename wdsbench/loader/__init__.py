"""Batches out of a data set: joins the stream, the C++ decode and the memory of batches into one
iterator.
"""

from wdsbench.loader.loader import LoaderStats, TraceLoader

__all__ = ["LoaderStats", "TraceLoader"]
