"""Scores of trace files one by one, joined to the CSV that one run over all of them would write."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import xxhash

from wdsbench.errors import ScoreError
from wdsbench.files import write_whole
from wdsbench.llm.questions import Question
from wdsbench.llm.score import score_traces
from wdsbench.traces.scores import TRACE_COLUMN, scores_csv

_END = ".scores.csv"


def score_part(file: Path, questions: Sequence[Question]) -> Path:
    """Score one trace file into a hidden CSV beside it, unless that is there, and return its path.

    Raises:
        TraceError: The file or a trace cannot be used.
        ScoreError: A trace's question has no reference, or is none of the questions; or both the
            file and its scores are gone.
    """
    part = file.with_name(f".{file.name}{_END}")
    if not part.exists():
        if not file.exists():
            raise ScoreError(
                f"{part} is gone, and {file.name} was removed once it was packed; put one of them"
                " back from a copy"
            )
        score_traces([file], questions, part)
    return part


def join_parts(parts: Sequence[Path], out_csv: Path) -> None:
    """Write the scores of all files, in their order: the bytes of :func:`score_traces` over them,
    where every trace of a question that has several says its number.
    """
    tables: list[list[list[str]]] = []
    for part in parts:
        with part.open(newline="", encoding="utf-8") as file:
            tables.append(list(csv.reader(file)))
    several = any(TRACE_COLUMN in header for header, *_ in tables)
    columns: list[str] = []
    joined: list[tuple[str, int, list[str]]] = []
    for header, *rows in tables:
        first = 2 if TRACE_COLUMN in header else 1  # without the column all are trace 0
        joined += [(row[0], int(row[1]) if first == 2 else 0, row[first:]) for row in rows]
        columns = header[first:]
    write_whole(out_csv, scores_csv(columns, joined, numbered=several))


def remove_parts(folder: Path) -> None:
    """Remove the scores of single files."""
    for part in folder.glob(f".*{_END}"):
        part.unlink()


def digest_of_references(questions: Sequence[Question]) -> str:
    """Return 16 hex digits of what answers are scored against."""
    digest = xxhash.xxh3_64()
    for question in questions:
        digest.update(repr((question.question_id, question.references)).encode())
    return digest.hexdigest()
