"""Raw traces and scores to a data set: one pass over the files, memory bounded by one of them.

``pack`` is the function behind ``wdsbench pack``. Nothing here imports torch.
"""

from wdsbench.pack.pack import PackOptions, PackReport, pack

__all__ = ["PackOptions", "PackReport", "pack"]
