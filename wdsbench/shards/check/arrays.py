"""Arrays of one sample in memory, parsed and compared with the table of member kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.shards.format.kinds import MemberSpec, Sizes
from wdsbench.shards.read.sample import parse_npy


@dataclass(frozen=True)
class MemberProblem:
    """What is wrong with a member of a sample.

    Attributes:
        kind: ``"npy"`` (header, dtype, shape), ``"value"``, ``"meta"`` or ``"member"`` (missing).
        member: Its name without the key.
        offset_bytes: Place in the member's data; None if there is none.
        detail: The value found and what is expected.
    """

    kind: str
    member: str
    offset_bytes: int | None
    detail: str


class ContentError(Exception):
    """Raised by a check that finds a problem."""

    def __init__(self, kind: str, member: str, offset_bytes: int, detail: str) -> None:
        super().__init__(detail)
        self.problem = MemberProblem(kind, member, offset_bytes, detail)


@dataclass(frozen=True)
class CheckedArray:
    """An npy member whose dtype and shape fit the sample.

    Attributes:
        name: The member.
        values: Its array in the stored dtype, uncopied.
        payload_bytes: Offset of the array in the member.
    """

    name: str
    values: NDArray[Any]
    payload_bytes: int

    def wrong(self, element: int, detail: str) -> ContentError:
        """Return the error about one element."""
        place = self.payload_bytes + element * self.values.dtype.itemsize
        return ContentError("value", self.name, place, detail)


def parsed(spec: MemberSpec, data: NDArray[np.uint8], sizes: Sizes) -> CheckedArray:
    """Return a member's array.

    Raises:
        ContentError: Its header, dtype or shape is wrong.
    """
    try:
        values, payload = parse_npy(data.data)
    except _core.FormatError as error:
        raise ContentError("npy", spec.name, error.offset_bytes, error.detail) from error
    wrong = spec.mismatch(values.dtype.str, values.shape, sizes)
    if wrong is not None:
        raise ContentError("npy", spec.name, 0, wrong)
    return CheckedArray(spec.name, values, payload)


def header_problem(member: str, data: Any, size: int) -> MemberProblem | None:
    """Return what is wrong with the npy header at the start of a member of ``size`` bytes."""
    try:
        _core.parse_npy_header(data, size)
    except _core.FormatError as error:
        return MemberProblem("npy", member, error.offset_bytes, error.detail)
    return None
