"""The folder of an extraction: resume, remove or protect earlier traces."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wdsbench.llm.journal import (
    BATCH_FILES,
    FAILURES_NAME,
    JOURNAL_NAME,
    LEFTOVERS,
    JournalState,
    batch_file,
    lock_journal,
    read_journal,
)


def open_folder(
    folder: Path,
    settings: Mapping[str, Any],
    *,
    resume: bool,
    overwrite: bool,
    destination: str | None = None,
) -> JournalState:
    """Prepare ``folder`` and return the state of an earlier run in it.

    Raises:
        ValueError: The folder holds an extraction and neither ``resume`` nor ``overwrite`` is set;
            another process is writing it; or the extraction to resume has other settings, lacks a
            file, or has removed files with another ``destination``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    earlier = sorted(folder.glob(BATCH_FILES))
    if overwrite:
        _remove_extraction(folder, earlier)
        return JournalState()
    state = read_journal(folder)
    if state.settings is not None:
        if not resume:
            raise ValueError(
                f"{folder} holds an extraction of {_traces(state)} traces ({len(earlier)} batch"
                " files already); continue it with resume, remove it with overwrite, or choose"
                " another folder."
            )
        _require_same(folder, state.settings, settings)
        if state.removed and state.destination != destination:
            raise ValueError(
                f"{len(state.removed)} trace files of {folder} were packed into"
                f" {folder / str(state.destination)} and removed; resume with --shards there, or"
                " extract again with overwrite."
            )
        _require_files(folder, state, settings["file_format"])
    elif earlier:
        raise ValueError(
            f"{folder} holds {len(earlier)} batch files already ({earlier[0].name}, ...)"
            f"{' and no journal to resume by' if resume else ''}; "
            "choose another folder, or allow overwriting."
        )
    return state


def _remove_extraction(folder: Path, files: list[Path]) -> None:
    """Remove an extraction that no process is writing."""
    journal = folder / JOURNAL_NAME
    with ExitStack() as stack:
        if journal.exists():
            stack.enter_context(lock_journal(journal))
        # The journal first: without it a partly removed extraction cannot look finished.
        for path in (journal, *files, *folder.glob(LEFTOVERS), folder / FAILURES_NAME):
            path.unlink(missing_ok=True)


def _traces(state: JournalState) -> int:
    return sum(len(record.traces) for record in state.batches.values())


def _require_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise ValueError(
                f"{folder} was begun with {name} {before.get(name)!r}, this run has"
                f" {now.get(name)!r}; resume with the settings it was begun with, or extract again"
                " with overwrite."
            )


def _require_files(folder: Path, state: JournalState, file_format: str) -> None:
    for number, traces in state.files.items():
        path = folder / batch_file(number, file_format)
        if traces and number not in state.removed and not path.exists():
            raise ValueError(
                f"{path} was written, according to the journal, but is missing; restore it, or"
                " extract again with overwrite."
            )
