"""One stored sample, decoded. No other Python code decodes members.

Dtype and shape are checked against the table of member kinds; every error names shard, member and
byte. The loader's hot path decodes in C++ and is tested against this module.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import DecodeError, ShardError
from wdsbench.records import EdgeLists, Member
from wdsbench.shards.format.kinds import HIDDEN_SCALE, IMAGE_RANGE, KINDS, META, Sizes
from wdsbench.shards.read.index import DatasetIndex

_SEE_VERIFY: Final = "`wdsbench verify` lists what is damaged"


def parse_npy(data: Any) -> tuple[NDArray[Any], int]:
    """Return an npy file as an array (a view) and its payload's offset; may raise FormatError."""
    descr, shape, payload = _core.parse_npy_header(data, len(data))
    return np.frombuffer(data, descr, offset=payload).reshape(shape), payload


def read_member(member: Member) -> bytes:
    """Return a member's bytes; raise ShardError if the shard cannot be read or is too short."""
    try:
        with open(member.shard, "rb", buffering=0) as file:  # noqa: PTH123 - hot: no Path is made
            file.seek(member.offset_bytes)
            data = file.read(member.size_bytes)
            while 0 < len(data) < member.size_bytes and (
                more := file.read(member.size_bytes - len(data))
            ):
                data += more
    except OSError as error:
        detail = f"cannot read: {error.strerror}"
        raise ShardError(detail, shard=member.shard, member=member.name) from error
    if len(data) != member.size_bytes:
        raise ShardError(
            f"the file ends here, {member.size_bytes - len(data)} bytes of the member are missing;"
            f" {_SEE_VERIFY}",
            shard=member.shard,
            member=member.name,
            offset_bytes=member.offset_bytes + len(data),
        )
    return data


def load_member(member: Member) -> NDArray[Any]:
    """Return an npy member as a read-only array in its stored dtype.

    Raises:
        ShardError: It cannot be read.
        DecodeError: It is not an npy file of a supported dtype.
    """
    try:
        return parse_npy(read_member(member))[0]
    except _core.FormatError as error:
        raise _damaged(member, error.detail, error.offset_bytes) from error


def causal_maps(halves: NDArray[Any], tokens: int) -> NDArray[Any]:
    """Return whole maps ``[L, H, T, T]`` of their causal halves."""
    maps = np.zeros((*halves.shape[:2], tokens, tokens), halves.dtype)
    rows, columns = np.tril_indices(tokens)
    maps[:, :, rows, columns] = halves
    return maps


class StoredSample:
    """The members of one row, read when accessed; arrays are read-only views of what was read."""

    def __init__(
        self,
        index: DatasetIndex,
        row: int,
        source: _core.ShardFiles | None = None,
        *,
        check_hash: bool = False,
    ) -> None:
        """Create the sample; nothing is read yet.

        ``source`` are open shards; without them each read opens the shard. ``check_hash`` compares
        every member with its XXH3 in the index.
        """
        self.index = index
        self.row = row
        self._source = source
        self._check_hash = check_hash

    @cached_property
    def sizes(self) -> Sizes:
        return self.index.sizes(self.row)

    def has(self, kind: str) -> bool:
        """Return whether the sample has a member kind, such as ``"edges"``."""
        return self.has_member(KINDS[kind].main)

    def has_member(self, member: str) -> bool:
        """Return whether the sample has a member, such as ``"hidden_scale.npy"``."""
        return bool(self.index.member(member, "size")[self.row])

    def read(self, member: str) -> bytes:
        """Return a member's bytes; raise ShardError if the shard is damaged or the hash differs."""
        index, row = self.index, self.row
        if self._source is None:
            data = read_member(index.place(row, member))
        else:
            offset, size = (int(index.member(member, part)[row]) for part in ("offset", "size"))
            try:
                data = self._source.read(int(index.columns["shard"][row]), offset, size)
            except _core.FormatError as error:
                place = index.place(row, member)
                raise ShardError(
                    f"{error.detail}; {_SEE_VERIFY}",
                    shard=place.shard,
                    member=place.name,
                    offset_bytes=error.offset_bytes,
                ) from error
        if self._check_hash and index.has_hashes:
            expected = int(index.member(member, "xxh3")[row])
            if xxhash.xxh3_64_intdigest(data) != expected:
                raise self.error(
                    member,
                    "the bytes are not those that were packed (XXH3 differs); restore the shard or"
                    f" pack again; {_SEE_VERIFY}",
                )
        return data

    def member_array(self, member: str) -> NDArray[Any]:
        """Return an npy member in its stored dtype; raise DecodeError if it does not fit."""
        try:
            array, _ = parse_npy(self.read(member))
        except _core.FormatError as error:
            detail = f"{error.detail}; {_SEE_VERIFY}"
            raise self.error(member, detail, error.offset_bytes) from error
        wrong = self.index.member_specs[member].mismatch(array.dtype.str, array.shape, self.sizes)
        if wrong is not None:
            raise self.error(member, f"{wrong}; {_SEE_VERIFY}")
        return array

    def array(self, kind: str) -> NDArray[Any]:
        """Return the main array of a member kind, or raise DecodeError with the remedy."""
        if not self.has(kind):
            member = self.index.place(self.row, KINDS[kind].main)
            detail = f"the sample has no {kind}; {KINDS[kind].remedy}"
            raise DecodeError(detail, shard=member.shard, member=member.name)
        return self.member_array(KINDS[kind].main)

    def scales(self) -> NDArray[np.float32] | None:
        """Return the factors ``[L]`` of scaled layers, or None if no layer is scaled."""
        return self.member_array(HIDDEN_SCALE) if self.has_member(HIDDEN_SCALE) else None

    def states(self) -> NDArray[Any]:
        """Return hidden states ``[L, t, D]``: as stored, or float32 if layers are scaled."""
        stored, scales = self.array("hidden"), self.scales()
        if scales is None:
            return stored
        wide: NDArray[np.float32] = stored.astype(np.float32) * scales[:, None, None]
        return wide

    def pixels(self) -> NDArray[np.float32]:
        """Return the patch, float32 ``[C, P, P]``: 0 and 1 at the ends of each channel's range."""
        stored = self.array("image").astype(np.float32)
        low, high = self.member_array(IMAGE_RANGE).T[:, :, None, None]
        width = high - low
        usable = (width > 0) & np.isfinite(width)
        with np.errstate(over="ignore", invalid="ignore"):
            pixels: NDArray[np.float32] = (stored - low) / np.where(usable, width, np.float32(1))
        return np.where(usable, pixels, np.float32(0))

    def maps(self) -> NDArray[Any] | None:
        """Return the attention maps ``[L, H, T, T]``, or None if they are not stored."""
        return causal_maps(self.array("full"), self.sizes.tokens) if self.has("full") else None

    def edges(self) -> EdgeLists | None:
        """Return the edges of the mean over heads, one list per layer, or None."""
        return self._edge_lists("edges")

    def heads(self) -> EdgeLists | None:
        """Return the edges of each head, list ``layer * H + head``, or None."""
        return self._edge_lists("heads")

    def sketch(self) -> NDArray[np.float16] | None:
        """Return the sketch ``[L, H, T, 4]``, or None."""
        return self.array("sketch") if self.has("sketch") else None

    def meta(self) -> dict[str, Any]:
        """Return ``meta.json``, empty if absent; raise DecodeError if it is not a JSON object."""
        if not self.has("meta"):
            return {}
        try:
            meta = json.loads(self.read(META))
        except ValueError as error:
            inside = error.pos if isinstance(error, json.JSONDecodeError) else 0
            raise self.error(META, f"not JSON: {error}; {_SEE_VERIFY}", inside) from error
        if not isinstance(meta, dict):
            raise self.error(META, f"a JSON {type(meta).__name__}, expected an object")
        return meta

    def logprobs(self, meta: dict[str, Any] | None = None) -> NDArray[np.float32] | None:
        """Return the answer's log-probabilities, float32, or None; ``meta`` if it was read."""
        values = (self.meta() if meta is None else meta).get("token_logprobs")
        if values is None:
            return None
        # JSON has no infinities.
        return np.array([-np.inf if value is None else value for value in values], np.float32)

    def error(self, member: str, detail: str, inside_bytes: int = 0) -> DecodeError:
        """Return an error about a byte of a member."""
        return _damaged(self.index.place(self.row, member), detail, inside_bytes)

    def _edge_lists(self, kind: str) -> EdgeLists | None:
        if not self.has(kind):
            return None
        index, pointer, weight = (self.member_array(spec.name) for spec in KINDS[kind].members)
        tokens, layers = self.sizes.tokens, self.sizes.layers
        heads = self.sizes.heads if kind == "heads" else 0
        try:
            _core.check_edge_lists(
                index, weight, pointer, tokens=tokens, layers=layers, heads=heads
            )
        except _core.FormatError as error:
            member = f"{error.member}.npy"
            inside = parse_npy(self.read(member))[1] + error.offset_bytes
            raise self.error(member, f"{error.detail}; {_SEE_VERIFY}", inside) from error
        return EdgeLists(index, weight, pointer)


def _damaged(member: Member, detail: str, inside_bytes: int) -> DecodeError:
    return DecodeError(
        detail,
        shard=member.shard,
        member=member.name,
        offset_bytes=member.offset_bytes + inside_bytes,
    )
