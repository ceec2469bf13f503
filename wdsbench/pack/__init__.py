"""Raw traces and scores to a data set: one pass over the files, memory bounded by one of them.

``pack`` is the function behind ``wdsbench pack``. Nothing here imports torch.
"""

from wdsbench.pack.options import PackOptions
from wdsbench.pack.pack import PackReport, pack

__all__ = ["PackOptions", "PackReport", "pack"]
