"""Arrays of one sample in memory, parsed and compared with the table of member kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.shards.read.sample import StoredSample, parse_npy


class ContentError(Exception):
    """A problem of a member's content.

    Attributes:
        kind: ``"npy"`` (header, dtype, shape), ``"value"``, ``"meta"`` or ``"member"`` (missing).
        member: Its name without the key.
        offset_bytes: Place in the member's data; None if there is none.
        detail: The value found and what is expected.
    """

    def __init__(self, kind: str, member: str, offset_bytes: int | None, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.member = kind, member
        self.offset_bytes, self.detail = offset_bytes, detail


@dataclass(frozen=True)
class CheckedArray:
    """An npy member whose dtype and shape fit the sample; ``values`` are uncopied."""

    name: str
    values: NDArray[Any]
    payload_bytes: int

    def wrong(self, element: int, detail: str) -> ContentError:
        """Return the error about one element."""
        place = self.payload_bytes + element * self.values.dtype.itemsize
        return ContentError("value", self.name, place, detail)


def parsed(sample: StoredSample, member: str, data: NDArray[np.uint8]) -> CheckedArray:
    """Return a member's array; raise `ContentError` if its header, dtype or shape is wrong."""
    try:
        values, payload = parse_npy(data.data)
    except _core.FormatError as error:
        raise ContentError("npy", member, error.offset_bytes, error.detail) from error
    spec = sample.index.member_specs[member]
    wrong = spec.mismatch(values.dtype.str, values.shape, sample.sizes)
    if wrong is not None:
        raise ContentError("npy", member, 0, wrong)
    return CheckedArray(member, values, payload)
