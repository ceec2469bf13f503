"""Samples for pipelines of one's own: members that are not read yet, and how to read one.

A sample is what webdataset makes of it (``__key__``, ``__url__``, an entry for each suffix), but an
entry is a :class:`wdsbench.records.Member` instead of bytes, and what the index knows (label,
score, question id, lengths) stands beside it. A shuffle buffer of such samples holds places, not
payloads; what is never asked for is never read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import DecodeError, ShardError
from wdsbench.records import Member
from wdsbench.shards.format.index import DatasetIndex
from wdsbench.shards.format.members import MEMBERS


class SampleMembers:
    """Turns rows of the index into samples whose members are not read yet."""

    def __init__(self, index: DatasetIndex) -> None:
        self._index = index
        self._members = [name for name in MEMBERS if f"{name}.size" in index.columns]

    def __call__(self, rows: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield a sample a row."""
        return map(self.sample, rows)

    def sample(self, row: int) -> dict[str, Any]:
        """Return one sample."""
        index = self._index
        shard, key = str(index.shard_path(int(index.columns["shard"][row]))), index.key(row)
        sample: dict[str, Any] = {"__key__": key, "__url__": shard}
        for name in self._members:
            size = int(index.member(name, "size")[row])
            if size:
                offset = int(index.member(name, "offset")[row])
                sample[name] = Member(shard, f"{key}.{name}", offset, size)
        sample["question_id"] = index.question_id(row)
        sample["label"] = float(index.columns["label"][row])
        sample["score"] = float(index.columns["score"][row])
        sample["token_count"] = int(index.columns["tokens"][row])
        sample["prompt_length"] = int(index.columns["prompt_length"][row])
        return sample


def read_member(member: Member) -> bytes:
    """Return a member's bytes.

    Raises:
        ShardError: The shard cannot be opened, or ends before the member does.
    """
    try:
        with open(member.shard, "rb", buffering=0) as file:  # noqa: PTH123 - hot: no Path is made
            file.seek(member.offset_bytes)
            data = file.read(member.size_bytes)
            while 0 < len(data) < member.size_bytes and (
                more := file.read(member.size_bytes - len(data))
            ):
                data += more
    except OSError as error:
        raise ShardError(
            f"cannot read: {error.strerror}", shard=member.shard, member=member.name
        ) from error
    if len(data) != member.size_bytes:
        raise ShardError(
            f"the file ends here, {member.size_bytes - len(data)} bytes of the member are missing",
            shard=member.shard,
            member=member.name,
            offset_bytes=member.offset_bytes + len(data),
        )
    return data


def load_member(member: Member) -> NDArray[Any]:
    """Return an npy member as an array, read-only, in its stored dtype.

    Raises:
        ShardError: It cannot be read. DecodeError: it is not an npy member of a plain dtype.
    """
    return parse_array(read_member(member), member)


def parse_array(data: bytes, member: Member) -> NDArray[Any]:
    """Return the array in ``data``, the bytes of an npy member; read-only, uncopied.

    Raises:
        DecodeError: It is not an npy member of a plain dtype.
    """
    try:
        descr, shape, payload = _core.parse_npy_header(data, len(data))
    except _core.FormatError as error:
        raise DecodeError(
            error.detail,
            shard=member.shard,
            member=member.name,
            offset_bytes=member.offset_bytes + error.offset_bytes,
        ) from error
    return np.frombuffer(data, descr, offset=payload).reshape(shape)
