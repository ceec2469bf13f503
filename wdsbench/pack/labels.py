"""Which label a trace gets, and where labels come from in the words of the index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from wdsbench.errors import ScoreError
from wdsbench.pack.options import PackOptions
from wdsbench.records import Trace
from wdsbench.traces.scores import ScoreTable, label_of

if TYPE_CHECKING:  # processes that read files do without the index
    from wdsbench.shards.format.index import LabelsEntry

_CHUNK_BYTES = 1 << 20
_SHOWN_NUMBERS = 8


@dataclass(frozen=True)
class Judge:
    """Gives traces their scores and labels.

    Attributes:
        scores: None: labels come from the files.
        options: The threshold, and what becomes of a trace without a score.
    """

    scores: ScoreTable | None
    options: PackOptions

    def waits(self, trace: Trace) -> bool:
        """Return whether a trace must be numbered before it can be judged: it does not say its
        number, and its question has scores by number.
        """
        numbered = self.scores is not None and trace.question_id in self.scores.numbers
        return numbered and trace.trace_number is None

    def judge(self, trace: Trace, number: int | None) -> tuple[float | None, float | None]:
        """Return (score, label) of a trace, None where unknown.

        Args:
            trace: Its arrays are not looked at.
            number: Its number; None: it has none, and does not wait for one.

        Raises:
            ScoreError: It has no label, and that is an error.
        """
        if self.scores is None:
            score, label = None, trace.label
        else:
            score = self.scores.of(trace.question_id, number)
            label = None if score is None else label_of(score, self.options.threshold)
        missing = self.options.missing(scored=self.scores is not None)
        if label is None and missing == "error":
            lacks = "no --scores and no label"
            if self.scores is not None:
                numbers = self.scores.numbers.get(trace.question_id)
                lacks = "the score file has no score for it"
                if numbers:
                    lacks += f", trace {number} of its question (it has rows of {listed(numbers)})"
            raise ScoreError(
                f"{place_of(trace)}: {lacks}; give the score, or pack with --missing-score drop or"
                " keep"
            )
        return score, label


def place_of(trace: Trace) -> str:
    """Return where a trace stands, for an error."""
    return f"{trace.file}, trace {trace.position}, question {trace.question_id}"


def listed(numbers: tuple[int, ...]) -> str:
    """Return trace numbers as an error shows them."""
    shown = ", ".join(map(str, numbers[:_SHOWN_NUMBERS]))
    plural = "s" if len(numbers) > 1 else ""
    return f"trace{plural} {shown}{', ...' if len(numbers) > _SHOWN_NUMBERS else ''}"


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
    from wdsbench.shards.format.index import LabelsEntry

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
