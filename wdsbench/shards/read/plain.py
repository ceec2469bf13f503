"""Index tar shards that have no index: one C++ pass over the headers builds the table in memory.

Keys and suffixes follow webdataset: the key ends at the first dot of the file's name, suffixes are
lower case. Labels are unknown unless ``meta.json`` has ``label`` or ``score``; hashes are unknown.
The split is that with which the file's name begins, ``train`` for other names.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from wdsbench import _core
from wdsbench.errors import DecodeError, ShardError
from wdsbench.records import SPLITS
from wdsbench.shards.format.index import (
    FieldEntry,
    IndexFile,
    Provenance,
    ShardEntry,
    as_split,
    is_layer_list,
    layers_in_words,
    split_entries,
)
from wdsbench.shards.format.kinds import ATTENTION, HEADS_POINTER, KINDS, META, SKETCH, TENSORS
from wdsbench.shards.format.rows import PlacedRow, SampleRow, columns_of
from wdsbench.shards.format.table import TableSpec
from wdsbench.shards.format.tar import Placement
from wdsbench.shards.read.index import DatasetIndex

#: Name of a sample's file in webdataset: folders and a name up to its first dot, then the suffix.
_SAMPLE_NAME = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]*)$")

#: Read of the states or the image for the shape; NumPy's headers of up to four axes have 128 bytes.
_HEADER_BYTES = 128


class _Shape(NamedTuple):
    """Kind of the tensor, its first and last axis, and its dtype."""

    kind: str
    layers: int
    features: int
    dtype: str

    def in_words(self) -> str:
        return f"({self.layers}, T, {self.features}) of {self.dtype}"


@dataclass
class _Sample:
    """A sample of an open tar file, with its row of the table."""

    path: Path
    descriptor: int
    key: str
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    tokens: int = 0
    state_tokens: int = 0
    prompt_length: int = -1
    question_id: str = ""
    trace: int = 0
    label: float = math.nan
    score: float = math.nan
    layers: list[int] | None = None

    def placed_row(self) -> PlacedRow:
        row = SampleRow(**{item.name: getattr(self, item.name) for item in fields(SampleRow)})
        return row, {name: Placement(*place, 0) for name, place in self.places.items()}

    def read_shape(self, shape: _Shape | None) -> _Shape:
        """Set T and return what all samples share."""
        mains = [KINDS[name].main for name in TENSORS]
        name = next((name for name in TENSORS if KINDS[name].main in self.places), None)
        if name is None or (shape is not None and name != shape.kind):
            wanted = " or ".join(mains) if shape is None else KINDS[shape.kind].main
            raise ShardError(
                f"sample {self.key} has no {wanted}, only {', '.join(sorted(self.places))}",
                shard=str(self.path),
            )
        main = KINDS[name].main
        descr, axes = self._npy_header(main)
        found = _Shape(name, axes[0], axes[2], descr) if len(axes) == 3 else None
        if found is None or found != (shape or found):
            expected = "three axes" if shape is None else shape.in_words()
            raise self._damaged(main, f"shape {axes} of {descr}, expected {expected}")
        self.state_tokens = self.tokens = axes[1]
        return found

    def read_heads(self, layers: int) -> int:
        """Return H of the attention members, or 0; decoding compares every other sample with it."""
        if HEADS_POINTER in self.places:  # [L * H + 1]
            _, axes = self._npy_header(HEADS_POINTER)
            return (axes[0] - 1) // layers if len(axes) == 1 and axes[0] else 0
        for member in (SKETCH, ATTENTION):  # [L, H, ...]
            if member in self.places:
                _, axes = self._npy_header(member)
                return axes[1] if len(axes) > 1 else 0
        return 0

    def read_meta(self, layers: int) -> None:
        """Set question id, prompt length, T, label, score and layers from ``meta.json``."""
        self.question_id = self.key
        if META not in self.places:
            return
        offset, size = self.places[META]
        try:
            meta = json.loads(os.pread(self.descriptor, size, offset))
            if not isinstance(meta, dict):
                raise ValueError("not an object")
            self.question_id = str(meta.get("question_id", self.key))
            self.trace = int(meta.get("trace") or 0)
            if meta.get("prompt_length") is not None:
                self.prompt_length = int(meta["prompt_length"])
            self.tokens = len(meta.get("tokens") or ()) or self.state_tokens
            self.label = float(math.nan if meta.get("label") is None else meta["label"])
            self.score = float(math.nan if meta.get("score") is None else meta["score"])
            numbers = meta.get("layers")  # another writer's key may have the same name
            if is_layer_list(numbers) and len(numbers) == layers:
                self.layers = numbers
        except (ValueError, TypeError) as error:
            raise self._damaged(META, f"not the JSON of a trace: {error}") from error

    def _npy_header(self, member: str) -> tuple[str, tuple[int, ...]]:
        offset, size = self.places[member]
        head = os.pread(self.descriptor, min(size, _HEADER_BYTES), offset)
        try:
            descr, axes, _ = _core.parse_npy_header(head, size)
        except _core.FormatError as error:
            raise self._damaged(member, error.detail, error.offset_bytes) from error
        return descr, axes

    def _damaged(self, member: str, detail: str, inside_bytes: int = 0) -> DecodeError:
        return DecodeError(
            detail,
            shard=str(self.path),
            member=f"{self.key}.{member}",
            offset_bytes=self.places[member][0] + inside_bytes,
        )


def index_tars(paths: Sequence[Path]) -> DatasetIndex:
    """Return an index of the tar files, made from their headers.

    Raises:
        ShardError: A tar file is damaged, members of a key are not contiguous, ``hidden.npy`` or
            ``image.npy`` is missing, or samples disagree in shape or layers.
    """
    ordered = sorted(paths, key=lambda path: (SPLITS.index(_split_of(path)), path))
    shards: list[tuple[Path, list[_Sample]]] = []
    shape: _Shape | None = None
    first: _Sample | None = None
    heads = 0
    for path in ordered:
        try:
            file = path.open("rb")
        except OSError as error:
            raise ShardError(f"cannot open: {error.strerror}", shard=str(path)) from error
        with file:
            samples = _samples(path, file.fileno())
            for sample in samples:
                shape = sample.read_shape(shape)
                sample.read_meta(shape.layers)
                first = first or sample
                if sample.layers != first.layers:
                    raise ShardError(
                        f"sample {sample.key} holds {layers_in_words(sample.layers)}, {first.key}"
                        f" {layers_in_words(first.layers)}; open each choice of layers by itself",
                        shard=str(path),
                    )
                heads = heads or sample.read_heads(shape.layers)
        shards.append((path, samples))
    if shape is None or first is None:
        raise ShardError(f"no sample in {len(paths)} tar files; there is nothing to read")
    placed = [(_split_of(path), [one.placed_row() for one in of]) for path, of in shards]
    columns = columns_of(placed, hashes=False)
    entries = {
        name: FieldEntry(
            dtype=shape.dtype if name == shape.kind else kind.main_spec.dtypes[0],
            shape=kind.index_shape(shape.layers, shape.features, heads),
            samples=int((columns[f"{kind.main}.size"] != 0).sum()),
        )
        for name, kind in KINDS.items()
        if name != "meta" and f"{kind.main}.size" in columns
    }
    index = IndexFile(
        __kind__="wids-shard-index-v1",
        name="tar files without an index",
        shardlist=[
            ShardEntry(
                url=str(path.resolve()),
                nsamples=len(samples),
                filesize=path.stat().st_size,
                xxh3="",
                split=as_split(_split_of(path)),
            )
            for path, samples in shards
        ],
        fields=entries,
        splits=split_entries(columns),
        layers=[],
        provenance=Provenance() if first.layers is None else Provenance(layers=first.layers),
        table=TableSpec(file="", size_bytes=0, xxh3="", columns=[]),
    )
    return _PlainIndex(Path(), index, columns)


class _PlainIndex(DatasetIndex):
    """An index in memory; pickled as the list of its tar files."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return index_tars, ([Path(entry.url) for entry in self.file.shardlist],)


def _split_of(path: Path) -> str:
    return next((split for split in SPLITS if path.name.startswith(split)), SPLITS[0])


def _samples(path: Path, descriptor: int) -> list[_Sample]:
    try:
        names, offsets, sizes = _core.list_tar_members(descriptor)
    except _core.FormatError as error:
        raise ShardError(error.detail, shard=str(path), offset_bytes=error.offset_bytes) from error
    samples: dict[str, _Sample] = {}
    last = ""
    for name, offset, size in zip(names, offsets.tolist(), sizes.tolist(), strict=True):
        parts = _SAMPLE_NAME.match(name)
        if parts is None:  # not a sample's file for webdataset either
            continue
        key, suffix = parts.group(1), parts.group(2).lower()
        problem = ""
        if key not in samples:
            samples[key] = _Sample(path, descriptor, key)
        elif key != last:
            problem = f"key {key} comes again after other keys; expected contiguous members"
        elif suffix in samples[key].places:
            problem = "the member is in its sample twice"
        if problem:
            raise ShardError(problem, shard=str(path), member=name, offset_bytes=offset)
        samples[key].places[suffix] = (offset, size)
        last = key
    return list(samples.values())
