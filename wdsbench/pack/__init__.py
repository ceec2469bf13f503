"""Raw traces and scores to a data set: one pass over the files, memory bounded by one of them.

``pack`` is the function behind ``wdsbench pack``, ``Packing`` takes files as they come. Nothing
here imports torch.
"""

from wdsbench.pack.options import PackOptions
from wdsbench.pack.pack import PackReport, pack
from wdsbench.pack.packing import Packing

__all__ = ["PackOptions", "PackReport", "Packing", "pack"]
