"""The parts of ``wdsbench bench graph`` by name."""

from __future__ import annotations

from wdsbench.bench.edges import edges_part
from wdsbench.bench.gnn import gnn_part
from wdsbench.bench.graph import graph_part
from wdsbench.bench.parts import Parts

#: Word of ``--cases`` -> what it measures, in this order.
PARTS: Parts = {"C": [graph_part], "edges": [edges_part], "gnn": [gnn_part]}
