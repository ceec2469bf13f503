"""A reader of data sets written from docs/format.md alone: the standard library and NumPy.

It trusts nothing: whatever contradicts the page is a `ValueError`.
"""

from __future__ import annotations

import ast
import json
import math
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 1
WEIGHT_MAX = np.uint16(0x3C0A).view(np.float16)
SPLITS = ("train", "val", "test")
INDEX_KEYS = {
    "__kind__", "wids_version", "wdsbench_format", "name", "shardlist", "fields", "splits",
    "layers", "provenance", "labels", "table",
}  # fmt: skip


def check(right: bool, message: str) -> None:
    """Raise `ValueError` unless ``right``."""
    if not right:
        raise ValueError(message)


def parse_npy(data: bytes) -> NDArray[Any]:
    """Return the array of an npy file of version 1.0, 2.0 or 3.0."""
    check(data[:6] == b"\x93NUMPY" and data[6] in (1, 2, 3) and data[7] == 0, "not an npy file")
    start, code = (10, "<H") if data[6] == 1 else (12, "<I")
    end = start + struct.unpack_from(code, data, 8)[0]
    header = ast.literal_eval(data[start:end].decode("latin1"))
    check(not header["fortran_order"], "Fortran order")
    dtype, shape = np.dtype(header["descr"]), header["shape"]
    check(len(data) - end == dtype.itemsize * math.prod(shape), "data does not fill the member")
    return np.frombuffer(data, dtype, offset=end).reshape(shape)


@dataclass
class Sample:
    """One sample; arrays that it does not have are absent from ``arrays``."""

    key: str
    split: str
    question_id: str
    row: dict[str, float]
    hidden: NDArray[np.float32] | None
    arrays: dict[str, NDArray[Any]]
    meta: dict[str, Any]


class Dataset:
    """A data set: its index and table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = json.loads((folder / "index.json").read_bytes())
        check(1 <= self.index["wdsbench_format"] <= FORMAT_VERSION, "another format version")
        check(set(self.index) <= INDEX_KEYS, "unknown keys in index.json")
        check(self.index["__kind__"] == "wids-shard-index-v1", "another kind of index")
        self.shards = self.index["shardlist"]
        for shard in self.shards:
            size = (folder / shard["url"]).stat().st_size
            check(size == shard["filesize"], f"{shard['url']} has {size} bytes")
        self.columns = self._columns()
        fields = self.index["fields"]
        tensor = fields["hidden"] if "hidden" in fields else fields["image"]
        self.layers, _, self.features = tensor["shape"]

    def __len__(self) -> int:
        return sum(shard["nsamples"] for shard in self.shards)

    def _columns(self) -> dict[str, NDArray[Any]]:
        table = self.index["table"]
        data = (self.folder / table["file"]).read_bytes()
        check(len(data) == table["size_bytes"], "the table has another size")
        columns = {}
        for column in table["columns"]:
            count, place = math.prod(column["shape"]), column["offset_bytes"]
            check(place % 64 == 0, "a column is not aligned")
            values = np.frombuffer(data, column["dtype"], count, place)
            columns[column["name"]] = values.reshape(column["shape"])
        return columns

    def members(self, row: int) -> dict[str, bytes]:
        """Return the members of a sample by name."""
        shard = self.folder / self.shards[self.columns["shard"][row]]["url"]
        found = {}
        with shard.open("rb") as file:
            for column in self.columns:
                name, _, part = column.rpartition(".")
                if part == "offset" and self.columns[f"{name}.size"][row]:
                    file.seek(int(self.columns[column][row]))
                    found[name] = file.read(int(self.columns[f"{name}.size"][row]))
        return found

    def sample(self, row: int) -> Sample:
        """Return a sample, checked."""
        columns = self.columns
        members = self.members(row)
        arrays = {
            name.removesuffix(".npy"): parse_npy(data)
            for name, data in members.items()
            if name.endswith(".npy")
        }
        shape = (self.layers, columns["state_tokens"][row], self.features)
        hidden = None
        if "image" in arrays:
            check(arrays["image"].dtype.str in ("|u1", "<u2", "<f2"), "dtype of image")
            check(arrays["image"].shape == shape, f"image is {arrays['image'].shape}")
            ranges = arrays["image_range"]
            check(ranges.dtype == "<f4" and ranges.shape == (self.layers, 2), "image_range")
        else:
            hidden = self._states(arrays, shape)
        tokens = int(columns["tokens"][row])
        self._check_attention(arrays, tokens)
        first, last = columns["question_offset"][row : row + 2]
        text = columns["question_bytes"][first:last].tobytes()
        names = ("trace", "tokens", "state_tokens", "prompt_length", "label", "score")
        return Sample(
            key=columns["key"][row].decode("ascii"),
            split=SPLITS[columns["split"][row]],
            question_id=text.decode(),
            row={name: columns[name][row].item() for name in names},
            hidden=hidden,
            arrays=arrays,
            meta=json.loads(members["meta.json"]),
        )

    def _states(
        self, arrays: dict[str, NDArray[Any]], shape: tuple[int, ...]
    ) -> NDArray[np.float32]:
        stored, scale = arrays.pop("hidden"), arrays.pop("hidden_scale", None)
        check(stored.dtype == "<f2" and stored.shape == shape, f"hidden is {stored.shape}")
        hidden = stored.astype(np.float32)
        if scale is not None:
            check(scale.dtype == "<f4" and scale.shape == (self.layers,), "hidden_scale")
            hidden *= scale[:, None, None]
        return hidden

    def _check_attention(self, arrays: dict[str, NDArray[Any]], tokens: int) -> None:
        fields = self.index["fields"]
        by_head = next((fields[name] for name in ("heads", "sketch", "full") if name in fields), 0)
        heads = by_head["shape"][1] if by_head else 0
        for kind, lists in (("edges", self.layers), ("heads", self.layers * heads)):
            if f"{kind}_ptr" in arrays:
                parts = (arrays[f"{kind}_{part}"] for part in ("index", "weight", "ptr"))
                check_edges(*parts, lists, tokens)
        for name, shape in (
            ("sketch", (self.layers, heads, tokens, 4)),
            ("attention", (self.layers, heads, tokens * (tokens + 1) // 2)),
        ):
            if name in arrays:
                check(arrays[name].dtype == "<f2" and arrays[name].shape == shape, name)

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))


def check_edges(
    index: NDArray[Any], weight: NDArray[Any], ptr: NDArray[Any], lists: int, tokens: int
) -> None:
    """Check the edges of all lists."""
    check(ptr.dtype == "<u4" and ptr.shape == (lists + 1,), "pointers")
    check(ptr[0] == 0 and bool((ptr[1:] >= ptr[:-1]).all()), "pointers decrease")
    check(index.dtype == np.min_scalar_type(tokens - 1), "type of indices")
    check(index.shape == (2, ptr[-1]) and weight.shape == (ptr[-1],), "number of edges")
    source, target = index.astype(np.int64)
    check(bool(((source < target) & (target < tokens)).all()), "an edge is not j < i < T")
    check(weight.dtype == "<f2" and bool(((weight >= 0) & (weight <= WEIGHT_MAX)).all()), "weights")
    for first, last in pairwise(ptr.tolist()):
        place = target[first:last] * tokens + source[first:last]
        check(bool((np.diff(place) > 0).all()), "edges of a list are not in order")


def tar_placements(path: Path) -> dict[str, tuple[int, int]]:
    """Return offset and size of every member of a shard, and check its headers."""
    found = {}
    data = path.read_bytes()
    with tarfile.open(path, format=tarfile.USTAR_FORMAT) as shard:
        for entry in shard:
            check(entry.isreg() and entry.mode == 0o644, f"{entry.name}: type or mode")
            check(entry.mtime == entry.uid == entry.gid == 0, f"{entry.name}: mtime, uid, gid")
            check(entry.uname == entry.gname == "" and not entry.pax_headers, entry.name)
            found[entry.name] = (entry.offset_data, entry.size)
    end = max(-(-(offset + size) // 512) * 512 for offset, size in found.values())
    check(data[end:] == bytes(1024), "the end is not two zero blocks")
    return found
