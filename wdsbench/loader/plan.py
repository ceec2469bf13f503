"""The plan by which a loader decodes, shared with its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.loader.tokens import TokenRanges, Tokens, is_single
from wdsbench.shards.format.kinds import HIDDEN
from wdsbench.shards.read.index import DatasetIndex


@dataclass(frozen=True)
class DecodePlan:
    """The settings with which all batches of a loader are decoded.

    Attributes:
        threads: Decode threads; 0: the thread that waits for the batch decodes it.
        verify_hash: Check XXH3 of members that are read whole.
        raw: Hidden states stay float16 until they are on the device.
    """

    index: DatasetIndex
    fields: tuple[str, ...]
    layers: NDArray[np.int64]
    tokens: Tokens
    ranges: TokenRanges
    threads: int
    verify_hash: bool
    raw: bool = False

    @property
    def single(self) -> bool:
        """True if ``tokens`` names one token, whose axis is left out."""
        return is_single(self.tokens)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in a batch: all requested layers."""
        return self.layers.size * self.index.num_features * (2 if self.raw else 4)

    @property
    def stored_token_bytes(self) -> int:
        """Bytes of a token in the shards: all requested layers."""
        dtype = np.dtype(self.index.fields["hidden"].dtype)
        return self.layers.size * self.index.num_features * dtype.itemsize

    def access(self, rows: NDArray[np.int64]) -> str:
        """Return ``"sparse"`` if less than half of the state bytes is requested, else ``"map"``."""
        stored = int(self.index.member(HIDDEN, "size")[rows].sum())
        requested = int(self.ranges.count[rows].sum()) * self.stored_token_bytes
        return "sparse" if 2 * requested < stored else "map"

    def job_table(
        self,
        columns: tuple[str, ...],
        rows: NDArray[np.int64],
        members: dict[str, str],
        **values: NDArray[Any] | int,
    ) -> NDArray[np.int64]:
        """Return a table of decode jobs, one row per sample, with the ``columns`` of ``_core``.

        ``members`` maps a prefix of columns to the member that gives ``_offset`` and ``_size``;
        ``values`` are the other columns except ``shard``.
        """
        values["shard"] = self.index.columns["shard"][rows]
        for prefix, member in members.items():
            for part in ("offset", "size"):
                values[f"{prefix}_{part}"] = self.index.member(member, part)[rows]
        jobs = np.empty((rows.size, len(columns)), np.int64)
        for column, name in enumerate(columns):
            jobs[:, column] = values[name]
        return jobs
