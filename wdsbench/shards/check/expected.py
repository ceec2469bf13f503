"""What index and table promise about one sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wdsbench.shards.format.kinds import MemberSpec, Sizes
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.read.index import DatasetIndex


@dataclass(frozen=True)
class ExpectedSample:
    """What index and table promise about one sample.

    Attributes:
        row: The sample's row of the table.
        sizes: L, T, t, D and H of the sample.
        specs: Rows of the table of member kinds, by member, with the dtypes of the index.
        model_layers: Numbers of the L layers in the model; None: all of its layers.
        has_table: True if the table was written with the shards. One that was made from the shards
            proves nothing about ``meta.json``.
    """

    row: SampleRow
    sizes: Sizes
    specs: Mapping[str, MemberSpec]
    model_layers: tuple[int, ...] | None
    has_table: bool

    @classmethod
    def of(cls, index: DatasetIndex, row: int) -> ExpectedSample:
        """Return what an index promises about one row."""
        return cls(
            index.sample_row(row),
            index.sizes(row),
            index.member_specs,
            index.model_layers,
            index.has_hashes,
        )
