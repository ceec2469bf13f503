"""Replace the labels of a finished data set: a new table and index, the same shards.

The new table is written under its own name, ``index.json`` is renamed over the old one, then the
old table is removed. A run that is killed leaves the old data set or the new one, at most with an
unused table that the next run removes. Readers keep the table they have mapped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import PackError, ShardError
from wdsbench.files import atomic_file
from wdsbench.shards.format.index import (
    INDEX_NAME,
    IndexFile,
    LabelsEntry,
    split_entries,
    superseded_tables,
)
from wdsbench.shards.format.table import write_table
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.claim import FolderClaim


class RowLabels(NamedTuple):
    """Labels and scores of all samples, in the order of the table; NaN if unknown.

    Attributes:
        label: float32 ``[n]``: 1 hallucinated, 0 right.
        score: float32 ``[n]``.
    """

    label: NDArray[np.float32]
    score: NDArray[np.float32]


def replace_labels(
    folder: Path, judge: Callable[[DatasetIndex], RowLabels], labels: LabelsEntry
) -> IndexFile:
    """Give every sample of a data set another label and score.

    Args:
        folder: The data set.
        judge: Returns the new labels; called while the folder is locked.
        labels: Source of the labels.

    Returns:
        The new index.

    Raises:
        ShardError: There is no data set, or it is damaged.
        PackError: Another process is writing there, or the disk is full.

    After an error, also of ``judge``, the data set is the old one or the new one.
    """
    if not (folder / INDEX_NAME).is_file():
        raise ShardError(
            f"no {INDEX_NAME} here, so there is no table of labels to rewrite (plain tar files have"
            " none); make a data set of the raw traces with `wdsbench pack --scores`",
            shard=str(folder),
        )
    claim = FolderClaim(folder, last=INDEX_NAME, superseded=superseded_tables)
    try:
        index = DatasetIndex.open(folder)
        rows = judge(index)
        columns: dict[str, NDArray[Any]] = {**index.columns, **rows._asdict()}
        return _replace_table(claim, index, columns, labels)
    except OSError as error:
        raise PackError(
            f"cannot write to {folder}: {error.strerror}; the labels are the old ones, or all new"
        ) from error
    finally:
        claim.settle()


def _replace_table(
    claim: FolderClaim,
    index: DatasetIndex,
    columns: dict[str, NDArray[Any]],
    labels: LabelsEntry,
) -> IndexFile:
    """Write the table, then the index."""
    old = index.file.table.file

    def new_file(name: str) -> Path:
        # The same labels make the same table; its file is whole (its hash was just checked).
        return index.folder / name if name == old else claim.new_file(name)

    claim.replaces(old)
    file = index.file.model_copy(
        update={
            "splits": split_entries(columns),
            "labels": labels,
            "table": write_table(columns, new_file),
        }
    )
    with atomic_file(index.folder / INDEX_NAME) as stream:
        stream.write(file.to_bytes())
    return file
