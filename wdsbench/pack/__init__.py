"""Raw traces and scores to a data set: one pass over the files, memory bounded by one of them.

``pack`` is the function behind ``wdsbench pack``, ``Packing`` takes files as they come. Nothing
here imports torch. Names are fetched when they are first used: processes that read files come in
by another door, and need neither the writer nor the index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wdsbench.pack.options import PackOptions

if TYPE_CHECKING:
    from wdsbench.pack.files import PackReport, pack
    from wdsbench.pack.packing import Packing

__all__ = ["PackOptions", "PackReport", "Packing", "pack"]


def __getattr__(name: str) -> Any:
    if name == "Packing":
        from wdsbench.pack.packing import Packing

        return Packing
    if name in ("PackReport", "pack"):
        from wdsbench.pack import files

        return getattr(files, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
