"""Where labels come from, in the words of the index."""

from __future__ import annotations

from pathlib import Path

import xxhash

from wdsbench.errors import ScoreError
from wdsbench.shards.index import LabelsEntry

_CHUNK_BYTES = 1 << 20


def labels_entry(
    scores: Path | None, column: str | None = None, threshold: float | None = None
) -> LabelsEntry:
    """Return what the index says of the labels.

    Args:
        scores: The score file; None: labels come from the raw traces.
        column: Its column that was used.
        threshold: A score below it means hallucinated.

    Raises:
        ScoreError: The file cannot be read.
    """
    if scores is None:
        return LabelsEntry(source="traces")
    return LabelsEntry(
        source="scores",
        file=scores.name,
        xxh3=_file_hash(scores),
        column=column,
        threshold=threshold,
    )


def _file_hash(path: Path) -> str | None:
    """Return the XXH3-64 of a file; None of a pipe, which is empty once it is read."""
    if not path.is_file():
        return None
    digest = xxhash.xxh3_64()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise ScoreError(f"{path}: cannot read scores: {error.strerror}") from error
    return digest.hexdigest()
