"""``index.json``, a superset of the ``wids`` shard list, and its version (``docs/format.md``).

A change that an older reader would misread gets a new ``wdsbench_format``. New keys of
``provenance``, columns and fields keep the number: an older reader ignores them. A reader of
version n reads versions 1 to n and refuses newer ones before it looks at anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, ValidationError

from wdsbench.errors import ShardError
from wdsbench.records import SPLITS
from wdsbench.shards.format.provenance import Provenance
from wdsbench.shards.format.table import TableSpec

INDEX_NAME = "index.json"

#: The version that is written, and the newest that is read.
FORMAT_VERSION: Final = 1

Split = Literal["train", "val", "test"]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ShardEntry(_Entry):
    """One shard: the keys of the ``wids`` shard list (url, nsamples, filesize) and two of ours."""

    url: str
    nsamples: NonNegativeInt
    filesize: NonNegativeInt
    xxh3: str
    split: Split


class FieldEntry(_Entry):
    """A field: stored dtype, shape (null for axes that differ per sample), samples that have it."""

    dtype: str
    shape: list[int | None]
    samples: NonNegativeInt
    note: str = ""


class SplitEntry(_Entry):
    """Samples and classes of one split."""

    samples: NonNegativeInt
    hallucinated: NonNegativeInt
    right: NonNegativeInt
    unlabelled: NonNegativeInt


class LayerEntry(_Entry):
    """Statistics of one layer's states before packing; see `HalfStates`."""

    max_abs: FiniteFloat
    infinities: NonNegativeInt
    scaled_samples: NonNegativeInt
    scale_error_max: FiniteFloat


class LabelsEntry(_Entry):
    """Source of the labels: a column of a score file (``xxh3`` None if it was a pipe), below whose
    ``threshold`` a trace is hallucinated (label 1); or the raw traces (the rest is None).
    """

    source: Literal["scores", "traces"]
    file: str | None = None
    xxh3: str | None = None
    column: str | None = None
    threshold: FiniteFloat | None = None


class IndexFile(BaseModel):
    """The contents of ``index.json``; old ones have no ``labels``."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    kind: Literal["wids-shard-index-v1"] = Field(alias="__kind__")
    wids_version: Literal[1] = 1
    wdsbench_format: int = FORMAT_VERSION
    name: str
    shardlist: list[ShardEntry]
    fields: dict[str, FieldEntry]
    splits: dict[Split, SplitEntry]
    layers: list[LayerEntry]
    provenance: Provenance
    labels: LabelsEntry | None = None
    table: TableSpec

    def to_bytes(self) -> bytes:
        """Return the bytes of ``index.json``."""
        return self.model_dump_json(by_alias=True, indent=1).encode() + b"\n"


def as_split(split: str) -> Split:
    """Return a split's name as its type; raise ValueError if there is no such split."""
    for name in ("train", "val", "test"):
        if name == split:
            return name
    raise ValueError(f"split {split!r} is not one of {', '.join(SPLITS)}")


def split_entries(columns: dict[str, NDArray[Any]]) -> dict[Split, SplitEntry]:
    """Return samples and classes of every split, counted from the columns."""
    entries: dict[Split, SplitEntry] = {}
    for place, split in enumerate(SPLITS):
        labels = columns["label"][columns["split"] == place]
        entries[as_split(split)] = SplitEntry(
            samples=labels.size,
            hallucinated=int((labels == 1).sum()),
            right=int((labels == 0).sum()),
            unlabelled=int(np.isnan(labels).sum()),
        )
    return entries


def layers_in_words(layers: Sequence[int] | None) -> str:
    """Return ``"layers 0, 15"``; ``"all layers"`` for None."""
    return "all layers" if layers is None else f"layers {', '.join(map(str, layers))}"


def read_index(folder: Path) -> tuple[bytes, IndexFile]:
    """Return the bytes of a data set's ``index.json``, and the index.

    Raises:
        ShardError: It cannot be read, is not an index, or has another version.
    """
    path = folder / INDEX_NAME
    try:
        text = path.read_bytes()
    except OSError as error:
        detail = f"no data set here: cannot read {INDEX_NAME} ({error.strerror})"
        raise ShardError(f"{detail}; make one with `wdsbench pack`", shard=str(folder)) from error
    _check_version(text, path)
    try:
        return text, IndexFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        detail = f"not a valid index: {place}: {first['msg']}"
        raise ShardError(detail, shard=str(path)) from error


class _Version(BaseModel):
    model_config = ConfigDict(strict=True)

    wdsbench_format: int = FORMAT_VERSION


def _check_version(text: bytes, path: Path) -> None:
    try:
        version = _Version.model_validate_json(text).wdsbench_format
    except ValidationError:  # the error of the whole index says more
        return
    expected = f"1 to {FORMAT_VERSION}"
    if version > FORMAT_VERSION:
        detail = f"format {version}, this wdsbench reads {expected}; install a newer wdsbench"
        raise ShardError(detail, shard=str(path))
    if version < 1:
        raise ShardError(f"format {version}, expected {expected}; pack again", shard=str(path))
