"""Check that no question is in two splits: a detector must not be tested on what it was trained on.

``wdsbench pack`` never writes such a data set, but one made by hand or from plain tars can be.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from wdsbench.errors import ShardError
from wdsbench.records import SPLITS
from wdsbench.shards.read.index import DatasetIndex


def check_split_hygiene(index: DatasetIndex) -> None:
    """Check that all traces of a question are in one split.

    The split is that of the shard, as readers use it. Takes about a second for a million samples.

    Raises:
        ShardError: A question is in two splits, or a sample in a shard of another split; both are
            named.
    """
    shards = index.file.shardlist
    of_shard = np.array([SPLITS.index(entry.split) for entry in shards], np.uint8)
    place = np.repeat(of_shard, np.diff(index.first_rows))
    astray = np.flatnonzero(place != index.columns["split"])
    if astray.size:
        row = int(astray[0])
        shard = index.shard_of(row)
        raise ShardError(
            f"question {index.question_id(row)!r} (row {row} of the table) is of split"
            f" {_split_name(int(index.columns['split'][row]))}, its shard of {shards[shard].split};"
            " pack again",
            shard=str(index.shard_path(shard)),
        )
    questions = {
        split: set(index.question_ids(np.flatnonzero(place == number)))
        for number, split in enumerate(SPLITS)
    }
    for first, second in combinations(SPLITS, 2):
        shared = questions[first] & questions[second]
        if shared:
            more = f" ({len(shared)} such questions)" if len(shared) > 1 else ""
            raise ShardError(
                f"question {min(shared)!r} is in split {first} and in {second}{more}; a"
                " question has one split: pack with --split-by question",
                shard=str(index.folder),
            )


def _split_name(number: int) -> str:
    return SPLITS[number] if number < len(SPLITS) else f"number {number}"
