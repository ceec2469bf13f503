"""An opened data set: where every member is stored, without touching a shard."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import ShardError
from wdsbench.records import SPLITS, FieldSpec, Member
from wdsbench.shards.format.index import INDEX_NAME, IndexFile, LabelsEntry, read_index
from wdsbench.shards.format.kinds import (
    KINDS,
    TENSORS,
    MemberKind,
    MemberSpec,
    Sizes,
    member_specs,
)
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.format.table import map_table

#: How often an index may name a table that does not exist before that is an error.
_TRIES: Final = 5

#: Columns that every table has besides the keys, one entry per sample.
COLUMNS: Final = ("shard", "split", "tokens", "state_tokens", "prompt_length", "label", "score")


class DatasetIndex:
    """An opened data set: ``file`` is ``index.json``, ``columns`` the mapped table, read-only."""

    def __init__(self, folder: Path, file: IndexFile, columns: dict[str, NDArray[Any]]) -> None:
        self.folder = folder
        self.file = file
        self.columns = columns

    @classmethod
    def open(cls, path: str | Path) -> DatasetIndex:
        """Open a folder; raise ShardError if it has no valid index, or another table."""
        folder = Path(path)
        failures: Counter[bytes] = Counter()
        while True:
            text, file = read_index(folder)
            try:
                columns = map_table(folder, file.table)
                break
            except ShardError:
                # `wdsbench relabel` can have replaced index and table in the meantime, and even
                # restored the old ones, so the same text does not prove that nothing changed.
                failures[text] += 1
                if failures[text] == _TRIES:
                    raise
        index = cls(folder, file, columns)
        index._check()
        return index

    def _check(self) -> None:
        samples = sum(entry.nsamples for entry in self.file.shardlist)
        for name in ("key", *COLUMNS):
            column = self.columns.get(name)
            if column is None or len(column) != samples:
                raise ShardError(
                    f"column {name}: not one entry for each of {samples} samples",
                    shard=str(self.folder),
                )
        if len(self.columns.get("question_offset", ())) != samples + 1:
            detail = "column question_offset does not fit the samples"
            raise ShardError(detail, shard=str(self.folder))
        name = self.tensor.name
        entry = self.file.fields.get(name)
        try:
            np.dtype(entry.dtype if entry else "<f2")
        except TypeError:
            raise ShardError(
                f"field {name} is stored as {entry and entry.dtype!r}, which NumPy does not know;"
                " pack again",
                shard=str(self.folder / INDEX_NAME),
            ) from None

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle as a path; the other process maps the table.

        If the data set was relabelled since, the old labels are pickled too.
        """
        table = self.file.table.file
        if (self.folder / table).exists():
            return _opened_again, (self.folder, table)
        labels = {name: np.array(self.columns[name]) for name in ("label", "score")}
        return _opened_relabelled, (self.folder, self.file, labels)

    def __len__(self) -> int:
        return len(self.columns["key"])

    @property
    def counts(self) -> dict[str, int]:
        return {split: self.file.splits[split].samples for split in self.file.splits}

    @property
    def labels(self) -> LabelsEntry | None:
        """Source of the labels; None if the index does not have it."""
        return self.file.labels

    @cached_property
    def tensor(self) -> MemberKind:
        """The kind that every sample has: ``hidden``, or ``image``."""
        return KINDS[next((name for name in TENSORS if name in self.file.fields), "hidden")]

    @property
    def num_layers(self) -> int:
        """L: layers of every sample's hidden states; of images C, their channels."""
        return self._tensor_axis(0)

    @property
    def model_layers(self) -> tuple[int, ...] | None:
        """Numbers of the L stored layers in the model, ascending, from 0; None: all of them.

        Raises ShardError if the index does not list L layers.
        """
        numbers = self.file.provenance.layers
        if numbers is None:
            return None
        if len(numbers) != self.num_layers:
            raise ShardError(
                f"layers are {str(numbers)[:200]}, expected {self.num_layers} ascending integers",
                shard=str(self.folder / INDEX_NAME),
            )
        return tuple(numbers)

    @cached_property
    def of_answer(self) -> NDArray[np.bool_]:
        """bool ``[n]``: samples that hold the states of their answer's tokens only."""
        prompt = self.columns["prompt_length"].astype(np.int64)
        answer = self.columns["tokens"].astype(np.int64) - prompt
        found: NDArray[np.bool_] = (prompt > 0) & (self.columns["state_tokens"] == answer)
        return found

    @property
    def num_features(self) -> int:
        """D: features of every hidden state; of images P, their columns."""
        return self._tensor_axis(2)

    @property
    def num_heads(self) -> int:
        """H: attention heads of every layer; 0 if neither ``heads`` nor ``sketch`` is stored."""
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
        tokens, states = (int(self.columns[name][row]) for name in ("tokens", "state_tokens"))
        return Sizes(self.num_layers, tokens, states, self.num_features, self.heads)

    def _tensor_axis(self, axis: int) -> int:
        size = self.file.fields[self.tensor.name].shape[axis]
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
        """Return column ``<member>.<part>`` (offset, size or xxh3); zeros if no sample has it."""
        column = self.columns.get(f"{member}.{part}")
        return np.broadcast_to(np.uint64(0), len(self)) if column is None else column

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        """int64 ``[shards + 1]``: the first row of every shard, then the number of rows."""
        counts = [entry.nsamples for entry in self.file.shardlist]
        return np.cumsum([0, *counts], dtype=np.int64)

    def shard_of(self, row: int) -> int:
        """Return the shard in whose rows a row is, whatever column ``shard`` says."""
        return int(np.searchsorted(self.first_rows, row, side="right")) - 1

    @property
    def has_hashes(self) -> bool:
        """True if the XXH3 of every member is known."""
        return f"{self.tensor.main}.xxh3" in self.columns

    def shards_of(self, split: str | None) -> list[int]:
        """Return the shards of a split, or all for None, in order; raise ValueError for others."""
        if split is not None and split not in SPLITS:
            raise ValueError(f"split {split!r} is not one of {', '.join(SPLITS)}, None")
        return [i for i, entry in enumerate(self.file.shardlist) if split in (None, entry.split)]

    def shard_path(self, shard: int) -> Path:
        return self.folder / self.file.shardlist[shard].url

    def keys(self, rows: NDArray[np.int64]) -> list[str]:
        keys = self.columns["key"][rows].tolist()
        return [key.decode("utf-8", "surrogateescape") for key in keys]

    def question_ids(self, rows: NDArray[np.int64]) -> list[str]:
        offsets, text = self.columns["question_offset"], self.columns["question_bytes"].data
        ranges = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
        return [str(text[first:last], "utf-8", "surrogatepass") for first, last in ranges]

    def sample_row(self, row: int) -> SampleRow:
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
        """Return the place of a sample's member; its size is 0 if the sample does not have it."""
        return Member(
            str(self.shard_path(int(self.columns["shard"][row]))),
            self.member_name(row, member),
            int(self.member(member, "offset")[row]),
            int(self.member(member, "size")[row]),
        )

    def key(self, row: int) -> str:
        return self.keys(np.array([row]))[0]

    def question_id(self, row: int) -> str:
        return self.question_ids(np.array([row]))[0]

    def member_name(self, row: int, member: str) -> str:
        """Return the full name of a sample's member inside its shard."""
        return f"{self.key(row)}.{member}"


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
            "the shards have changed since reading began; open the data set again",
            shard=str(folder),
        )
    return DatasetIndex(folder, file, {**index.columns, **labels})
