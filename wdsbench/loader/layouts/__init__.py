"""How the samples of a batch are arranged in its tensors: one class and one file per layout.

A layout is added by a subclass of :class:`Layout` and a row of :data:`LAYOUTS`; the loader, its
workers and its memory use only the five methods of the class.
"""

from wdsbench.loader.layouts.graph import GraphLayout
from wdsbench.loader.layouts.image import ImageLayout
from wdsbench.loader.layouts.jagged import JaggedLayout
from wdsbench.loader.layouts.layout import BatchTensors, Layout, Placement
from wdsbench.loader.layouts.pad import PadLayout
from wdsbench.loader.layouts.stack import StackLayout
from wdsbench.loader.layouts.union_graph import UnionGraphLayout

#: Layouts by name, the argument ``layout`` of ``TraceLoader``.
LAYOUTS: dict[str, type[Layout]] = {
    layout.name: layout
    for layout in (
        StackLayout,
        PadLayout,
        JaggedLayout,
        GraphLayout,
        UnionGraphLayout,
        ImageLayout,
    )
}

__all__ = ["LAYOUTS", "BatchTensors", "Layout", "Placement"]
