"""The index of a data set: ``index.json`` (a superset of the ``wids`` shard list) and the mapped
table beside it.

Columns of the table, one row a sample, rows in shard order (train, val, test):

    key S57 · shard u4 · split u1 · trace u4 · tokens u4 (T) · state_tokens u4 (t: states are those
    of the last t tokens; T, T - prompt_length where only the answer's were saved, 1 where only the
    last one's) · prompt_length i4 (-1 unknown) · label f4 · score f4 (NaN unknown)
    question_offset u8 [n + 1] into question_bytes u1: UTF-8 question ids
    <member>.offset u8, <member>.size u8 (0: no such member), <member>.xxh3 u8, for every member
    that some sample has
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, ValidationError

from wdsbench.errors import ShardError
from wdsbench.records import SPLITS, FieldSpec, Member
from wdsbench.shards.format.kinds import HIDDEN, KINDS, MemberSpec, Sizes, member_specs
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.format.table import TableSpec, is_table_name, map_table

INDEX_NAME = "index.json"
FORMAT_VERSION = 1
#: How often an index may name a table that is not there before it is believed.
_TRIES: Final = 5

Split = Literal["train", "val", "test"]


class ShardEntry(BaseModel):
    """One shard, in the words of the ``wids`` shard list (url, nsamples, filesize) and ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    nsamples: NonNegativeInt
    filesize: NonNegativeInt
    xxh3: str
    split: Split


class FieldEntry(BaseModel):
    """A field of every sample: stored dtype, shape (null where samples differ), how many samples
    have it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: str
    shape: list[int | None]
    samples: NonNegativeInt
    note: str = ""


class SplitEntry(BaseModel):
    """Samples and classes of one split."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: NonNegativeInt
    hallucinated: NonNegativeInt
    right: NonNegativeInt
    unlabelled: NonNegativeInt


class LayerEntry(BaseModel):
    """What packing saw of one layer's states; see `HalfStates`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_abs: FiniteFloat
    infinities: NonNegativeInt
    scaled_samples: NonNegativeInt
    scale_error_max: FiniteFloat


class LabelsEntry(BaseModel):
    """Where the labels come from: a score file, or the raw traces.

    No time and no folder is kept: the same input gives the same bytes anywhere.

    Attributes:
        source: ``"scores"`` or ``"traces"``; the rest is None for traces.
        file: Name of the score file.
        xxh3: XXH3-64 of its bytes; None where it was a pipe, which cannot be read twice.
        column: Which of its columns.
        threshold: A score below it means hallucinated (label 1).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Literal["scores", "traces"]
    file: str | None = None
    xxh3: str | None = None
    column: str | None = None
    threshold: FiniteFloat | None = None


class IndexFile(BaseModel):
    """``index.json`` as it stands on the disk.

    ``provenance`` says how the shards were packed, and under ``layers`` which of the model's layers
    they hold (missing: all of them); ``labels`` where the labels come from now (None: of an index
    written before there was such an entry).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    kind: Literal["wids-shard-index-v1"] = Field(alias="__kind__")
    wids_version: Literal[1] = 1
    wdsbench_format: int = FORMAT_VERSION
    name: str
    shardlist: list[ShardEntry]
    fields: dict[str, FieldEntry]
    splits: dict[Split, SplitEntry]
    layers: list[LayerEntry]
    provenance: dict[str, Any]
    labels: LabelsEntry | None = None
    table: TableSpec

    def to_bytes(self) -> bytes:
        """Return what ``index.json`` holds."""
        return self.model_dump_json(by_alias=True, indent=1).encode() + b"\n"


def as_split(split: str) -> Split:
    """Return a split's name as its type.

    Raises:
        ValueError: There is no such split.
    """
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


def is_layer_list(value: object, count: int) -> TypeGuard[list[int]]:
    """Return whether ``value`` names ``count`` layers of a model, ascending, from 0."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(type(number) is int for number in value)
        and all(before < after for before, after in pairwise([-1, *value]))
    )


def layers_in_words(layers: Sequence[int] | None) -> str:
    """Return ``"layers 0, 15"``; ``"all layers"`` for None."""
    return "all layers" if layers is None else f"layers {', '.join(map(str, layers))}"


def superseded_tables(folder: Path, names: Sequence[str]) -> list[str]:
    """Return those of the names that are tables, and not the one that ``index.json`` names.

    An index that cannot be read names nothing: then none is returned, for nothing is known.
    """
    try:
        file = IndexFile.model_validate_json((folder / INDEX_NAME).read_bytes())
    except (OSError, ValidationError):
        return []
    return [name for name in names if is_table_name(name) and name != file.table.file]


class DatasetIndex:
    """An opened index: what is where, without touching a shard.

    Attributes:
        folder: The data set's folder.
        file: The parsed ``index.json``.
        columns: The mapped table, read-only.
    """

    def __init__(self, folder: Path, file: IndexFile, columns: dict[str, NDArray[Any]]) -> None:
        self.folder = folder
        self.file = file
        self.columns = columns

    @classmethod
    def open(cls, path: str | Path) -> DatasetIndex:
        """Open the data set in folder ``path``.

        Raises:
            ShardError: No index, not one this version reads, or table and index disagree.
        """
        folder = Path(path)
        failures: Counter[bytes] = Counter()
        while True:
            text = _read_index(folder)
            file = _parse_index(folder, text)
            try:
                columns = map_table(folder, file.table)
                break
            except ShardError:
                # `wdsbench relabel` may have put another index and table in place meanwhile, and
                # perhaps the old ones again: the same text is no proof that nothing changed.
                failures[text] += 1
                if failures[text] == _TRIES:
                    raise
        index = cls(folder, file, columns)
        index._check()
        return index

    def _check(self) -> None:
        samples = sum(entry.nsamples for entry in self.file.shardlist)
        for name in (
            "key",
            "shard",
            "split",
            "tokens",
            "state_tokens",
            "prompt_length",
            "label",
            "score",
        ):
            column = self.columns.get(name)
            if column is None or len(column) != samples:
                raise ShardError(
                    f"column {name}: not one entry for each of {samples} samples",
                    shard=str(self.folder),
                )
        if len(self.columns.get("question_offset", ())) != samples + 1:
            raise ShardError(
                "column question_offset does not fit the samples", shard=str(self.folder)
            )

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Travel to another process as a path: the table is mapped there, not copied.

        Where the data set was relabelled since, the old labels travel too: whoever reads goes on
        with those it began with.
        """
        table = self.file.table.file
        if (self.folder / table).exists():
            return _opened_again, (self.folder, table)
        labels = {name: np.array(self.columns[name]) for name in ("label", "score")}
        return _opened_relabelled, (self.folder, self.file, labels)

    def __len__(self) -> int:
        """Return the number of samples in all splits."""
        return len(self.columns["key"])

    @property
    def counts(self) -> dict[str, int]:
        """Samples per split."""
        return {split: self.file.splits[split].samples for split in self.file.splits}

    @property
    def class_counts(self) -> dict[str, dict[str, int]]:
        """Hallucinated, right and unlabelled samples per split."""
        return {
            split: {
                "hallucinated": entry.hallucinated,
                "right": entry.right,
                "unlabelled": entry.unlabelled,
            }
            for split, entry in self.file.splits.items()
        }

    @property
    def labels(self) -> LabelsEntry | None:
        """Where the labels come from; None where the index does not say."""
        return self.file.labels

    @property
    def num_layers(self) -> int:
        """L: layers of every sample's hidden states."""
        return self._hidden_axis(0)

    @property
    def model_layers(self) -> tuple[int, ...] | None:
        """Which of the model's layers the L stored ones are, ascending, from 0; None: all of them.

        Raises:
            ShardError: What the index says is no such list.
        """
        numbers = self.file.provenance.get("layers")
        if numbers is None:
            return None
        if not is_layer_list(numbers, self.num_layers):
            raise ShardError(
                f"layers are {str(numbers)[:200]}, expected {self.num_layers} ascending integers",
                shard=str(self.folder / INDEX_NAME),
            )
        return tuple(numbers)

    @cached_property
    def of_answer(self) -> NDArray[np.bool_]:
        """bool ``[n]``: samples that hold the states of their answer's tokens alone."""
        prompt = self.columns["prompt_length"].astype(np.int64)
        answer = self.columns["tokens"].astype(np.int64) - prompt
        found: NDArray[np.bool_] = (prompt > 0) & (self.columns["state_tokens"] == answer)
        return found

    @property
    def num_features(self) -> int:
        """D: features of every hidden state."""
        return self._hidden_axis(2)

    @property
    def num_heads(self) -> int:
        """H: attention heads of every layer; 0 where nothing of single heads is stored."""
        entry = self.file.fields.get("heads") or self.file.fields.get("sketch")
        return 0 if entry is None else int(entry.shape[1] or 0)

    @cached_property
    def heads(self) -> int:
        """H of every kind that has an axis for it, ``full`` included; 0 if there is none."""
        for name, entry in self.file.fields.items():
            axis = KINDS[name].heads_axis() if name in KINDS else None
            if axis is not None and axis < len(entry.shape):
                return int(entry.shape[axis] or 0)
        return 0

    @cached_property
    def member_specs(self) -> dict[str, MemberSpec]:
        """Every member's row of the table of kinds, with the dtype that the index states."""
        specs = member_specs()
        for name, entry in self.file.fields.items():
            if name in KINDS:
                main = KINDS[name].main
                specs[main] = replace(specs[main], dtypes=(entry.dtype,))
        return specs

    def sizes(self, row: int) -> Sizes:
        """Return the sizes that the shapes of a sample's members are made of."""
        columns = self.columns
        return Sizes(
            layers=self.num_layers,
            tokens=int(columns["tokens"][row]),
            states=int(columns["state_tokens"][row]),
            features=self.num_features,
            heads=self.heads,
        )

    def _hidden_axis(self, axis: int) -> int:
        size = self.file.fields["hidden"].shape[axis]
        assert size is not None
        return size

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """Fields of every sample with stored dtype and shape."""
        return {
            name: FieldSpec(name, entry.dtype, tuple(entry.shape), entry.note)
            for name, entry in self.file.fields.items()
        }

    def has_member(self, member: str) -> bool:
        """Return whether every sample has this member (``"edges_index.npy"``)."""
        sizes = self.columns.get(f"{member}.size")
        return sizes is not None and bool((sizes != 0).all())

    def member(self, member: str, part: str) -> NDArray[np.uint64]:
        """Return column ``<member>.<part>`` (offset, size or xxh3); zeros where no sample has the
        member.
        """
        column = self.columns.get(f"{member}.{part}")
        return np.broadcast_to(np.uint64(0), len(self)) if column is None else column

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        """int64 ``[shards + 1]``: the first row of every shard, then the number of rows."""
        return np.concatenate(
            [[0], np.cumsum([entry.nsamples for entry in self.file.shardlist], dtype=np.int64)]
        )

    @property
    def has_hashes(self) -> bool:
        """Whether the XXH3 of every member is known."""
        return f"{HIDDEN}.xxh3" in self.columns

    def shards_of(self, split: str | None) -> list[int]:
        """Return the shards of a split in order; of all splits for None.

        Raises:
            ValueError: The split is unknown.
        """
        if split is not None and split not in SPLITS:
            raise ValueError(f"split {split!r} is not one of {', '.join(SPLITS)}, None")
        return [i for i, entry in enumerate(self.file.shardlist) if split in (None, entry.split)]

    def shard_path(self, shard: int) -> Path:
        """Return the path of a shard."""
        return self.folder / self.file.shardlist[shard].url

    def keys(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the member keys of samples."""
        return [
            key.decode("utf-8", "surrogateescape") for key in self.columns["key"][rows].tolist()
        ]

    def question_ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the question ids of samples."""
        offsets, text = self.columns["question_offset"], self.columns["question_bytes"].data
        ranges = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
        return [str(text[first:last], "utf-8", "surrogatepass") for first, last in ranges]

    def sample_row(self, row: int) -> SampleRow:
        """Return what the table has about one sample, members apart."""
        columns = self.columns
        return SampleRow(
            key=self.key(row),
            question_id=self.question_id(row),
            trace=int(columns["trace"][row]) if "trace" in columns else 0,
            tokens=int(columns["tokens"][row]),
            state_tokens=int(columns["state_tokens"][row]),
            prompt_length=int(columns["prompt_length"][row]),
            label=float(columns["label"][row]),
            score=float(columns["score"][row]),
        )

    def place(self, row: int, member: str) -> Member:
        """Return where a sample's member is stored; size 0 if the sample does not have it."""
        return Member(
            str(self.shard_path(int(self.columns["shard"][row]))),
            self.member_name(row, member),
            int(self.member(member, "offset")[row]),
            int(self.member(member, "size")[row]),
        )

    def key(self, row: int) -> str:
        """Return a sample's member key."""
        return self.keys(np.array([row]))[0]

    def question_id(self, row: int) -> str:
        """Return a sample's question id."""
        return self.question_ids(np.array([row]))[0]

    def member_name(self, row: int, member: str) -> str:
        """Return the full name of a sample's member inside its shard."""
        return f"{self.key(row)}.{member}"


def _read_index(folder: Path) -> bytes:
    try:
        return (folder / INDEX_NAME).read_bytes()
    except OSError as error:
        raise ShardError(
            f"no data set here: cannot read {INDEX_NAME} ({error.strerror}); make one with "
            f"`wdsbench pack`",
            shard=str(folder),
        ) from error


def _parse_index(folder: Path, text: bytes) -> IndexFile:
    index_path = folder / INDEX_NAME
    try:
        file = IndexFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ShardError(
            f"not a valid index: {place}: {first['msg']}", shard=str(index_path)
        ) from error
    if file.wdsbench_format != FORMAT_VERSION:
        raise ShardError(
            f"format {file.wdsbench_format}, this wdsbench reads {FORMAT_VERSION}; install the "
            f"one that wrote it",
            shard=str(index_path),
        )
    return file


def _opened_again(folder: Path, table: str) -> DatasetIndex:
    """Return the index that another process had open, by its table's name."""
    index = DatasetIndex.open(folder)
    if index.file.table.file != table:
        raise ShardError(
            f"the table was {table} when reading began and is {index.file.table.file} now: the"
            " data set was relabelled while reading processes started; open it again",
            shard=str(folder),
        )
    return index


def _opened_relabelled(
    folder: Path, file: IndexFile, labels: dict[str, NDArray[np.float32]]
) -> DatasetIndex:
    """Return the index that another process opened before the data set was relabelled."""
    index = DatasetIndex.open(folder)
    if index.file.shardlist != file.shardlist:
        raise ShardError(
            "other shards stand here than when reading began; open the data set again",
            shard=str(folder),
        )
    return DatasetIndex(folder, file, {**index.columns, **labels})
