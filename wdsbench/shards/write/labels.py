"""Replaces the labels of a finished data set: a new table and index, the same shards.

A kill leaves the old data set or the new one, perhaps with a second table, which the next run
removes. Readers keep the table they have mapped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import PackError, ShardError
from wdsbench.files import atomic_file
from wdsbench.shards.format.index import INDEX_NAME, IndexFile, LabelsEntry, split_entries
from wdsbench.shards.format.table import write_table
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.claim import FolderClaim


class RowLabels(NamedTuple):
    """Labels (1 hallucinated, 0 correct) and scores, float32 ``[n]`` in the order of the table; NaN
    where unknown.
    """

    label: NDArray[np.float32]
    score: NDArray[np.float32]


def replace_labels(
    folder: Path, rows_of: Callable[[DatasetIndex], RowLabels], labels: LabelsEntry
) -> IndexFile:
    """Replace the label and score of every sample and return the new index.

    ``rows_of`` returns the new labels; it is called while no other process can change the data set.
    After any exception the folder holds the old data set or the new one.

    Raises:
        ShardError: There is no data set, or it is damaged.
        PackError: Another process is writing there, or the disk is full.
    """
    if not (folder / INDEX_NAME).is_file():
        raise ShardError(
            f"there is no {INDEX_NAME}, so there is no table of labels (plain tar files have none);"
            " create a data set from the raw traces with `wdsbench pack --scores`",
            shard=str(folder),
        )
    with FolderClaim(folder) as claim:
        try:
            index = DatasetIndex.open(folder)
            columns: dict[str, NDArray[Any]] = {**index.columns, **rows_of(index)._asdict()}
            return _replace_table(claim, index, columns, labels)
        except OSError as error:
            raise PackError(
                f"cannot write to {folder}: {error.strerror}; the labels are all old or all new"
            ) from error


def _replace_table(
    claim: FolderClaim, index: DatasetIndex, columns: dict[str, NDArray[Any]], labels: LabelsEntry
) -> IndexFile:
    old = index.file.table.file

    def new_file(name: str) -> Path:
        # Equal labels give an equal table; the existing file is intact (its hash was checked).
        return index.folder / name if name == old else claim.new_file(name)

    claim.list_replaced(old)
    table = write_table(columns, new_file)
    update = {"splits": split_entries(columns), "labels": labels, "table": table}
    file = index.file.model_copy(update=update)
    with atomic_file(index.folder / INDEX_NAME) as stream:
        stream.write(file.to_bytes())
    return file
