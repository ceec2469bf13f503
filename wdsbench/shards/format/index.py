"""``index.json``, a superset of the ``wids`` shard list, with provenance and version.

``docs/format.md`` describes the keys and the changes that need a new version. Provenance holds
names of files, no paths and no times; only the keys that were set are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    ValidationError,
    field_validator,
    model_serializer,
)

from wdsbench.errors import ShardError
from wdsbench.records import SPLITS
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
    ``threshold`` a trace is hallucinated (label 1); or the raw traces (the rest is None). Of
    images: a CSV of labels (no threshold), or folders by class.
    """

    source: Literal["scores", "traces", "csv", "folders"]
    file: str | None = None
    xxh3: str | None = None
    column: str | None = None
    threshold: FiniteFloat | None = None


def is_layer_list(value: object) -> TypeGuard[list[int]]:
    """Return whether ``value`` is a list of a model's layers: integers from 0, ascending."""
    return (
        isinstance(value, list)
        and all(type(number) is int for number in value)
        and all(before < after for before, after in pairwise([-1, *value]))
    )


class PackedFile(_Entry):
    """A raw trace file and the number of its traces that are samples."""

    file: str
    samples: NonNegativeInt


class PackedImages(_Entry):
    """How images were packed; ``channels`` are None if all were, ``stride`` with mode resize."""

    count: NonNegativeInt
    left_out: NonNegativeInt
    patch_size: NonNegativeInt
    mode: Literal["resize", "tile"]
    stride: NonNegativeInt | None
    channels: list[NonNegativeInt] | None
    range: Literal["image", "channel"]


class Appended(_Entry):
    """One run of ``wdsbench pack --append``: the number of its files, and its score file."""

    inputs: NonNegativeInt
    scores: str | None


class Repaired(_Entry):
    """The last run of ``wdsbench verify --repair``; ``lost_before`` counts earlier repairs, and
    ``list`` is the file that lists lost samples.
    """

    samples_before: NonNegativeInt
    samples: NonNegativeInt
    lost: NonNegativeInt
    lost_before: NonNegativeInt
    shards: tuple[str, ...]
    list: str


class Provenance(BaseModel):
    """How a data set was made: optional keys of ``docs/format.md``; others are kept."""

    model_config = ConfigDict(extra="allow", frozen=True)

    wdsbench: str | None = None
    inputs: list[PackedFile] = []
    images: PackedImages | None = None
    scores: str | None = None
    score_column: str | None = None
    threshold: float | None = None
    missing_score: str | None = None
    dropped: NonNegativeInt = 0
    numbered: NonNegativeInt | None = None
    split_by: str | None = None
    attention: list[str] | None = None
    edge_rule: str | None = None
    head_threshold: float | None = None
    reduction: str | None = None
    remarks: dict[str, NonNegativeInt] | None = None
    layers: list[int] | None = None
    appended: list[Appended] = []
    repaired: Repaired | None = None

    @field_validator("layers", mode="before")
    @classmethod
    def _check_layers(cls, value: object) -> object:
        if value is not None and not is_layer_list(value):
            raise ValueError(f"layers are {str(value)[:200]}, expected ascending integers")
        return value

    @model_serializer(mode="wrap")
    def _only_set(self, serialize: Callable[[Provenance], dict[str, Any]]) -> dict[str, Any]:
        values = serialize(self)
        return {name: value for name, value in values.items() if name in self.model_fields_set}


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
