"""Find and open raw trace files."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final, cast

from isal import igzip

from wdsbench.errors import TraceError
from wdsbench.traces.scores import SCORES_NAME

SUFFIXES: Final = {
    "pickle": (".pkl", ".pickle", ".pkl.gz", ".pickle.gz"),
    "tensors": (".pt", ".pth"),
    "safetensors": (".safetensors",),
    "npz": (".npz",),
    "hdf5": (".h5", ".hdf5"),
}
JOURNAL_NAME: Final = "journal.jsonl"
FAILURES_NAME: Final = "failures.jsonl"
#: Files that ``extract`` and ``score`` write next to the traces; globs ignore these names.
BESIDE_TRACES: Final = (JOURNAL_NAME, FAILURES_NAME, SCORES_NAME)
# RFC 1952, section 2.3.1; no pickle starts with these bytes.
GZIP_MAGIC: Final = b"\x1f\x8b"


def expand_patterns(patterns: Sequence[str | Path]) -> list[Path]:
    """Return the trace files that match any of ``patterns``, sorted by path, each once.

    A pattern is a file, a folder (all trace files directly in it) or a glob
    (``traces_data/*.pkl*``, ``**`` for any depth). Globs do not match hidden files and
    ``BESIDE_TRACES``.

    Raises:
        ValueError: A pattern is empty.
        TraceError: A pattern matches nothing, or a file that is not a trace file or the compressed
            copy of another match.
    """
    files, refused = match_patterns(patterns)
    if refused:
        raise refused[0]
    return files


def match_patterns(patterns: Sequence[str | Path]) -> tuple[list[Path], list[TraceError]]:
    """Return the trace files as ``expand_patterns`` does, and an error for every other match."""
    found: dict[str, Path] = {}
    for pattern in patterns:
        if not str(pattern).strip():  # Path("") would be the working folder
            raise ValueError(
                f"trace file pattern {str(pattern)!r} is empty; expected a file, a folder or a "
                "glob, for example 'traces_data/*.pkl*', or '.' for the working folder"
            )
        matches = _matches(str(pattern))
        if not matches:
            raise TraceError(
                f"no file matches {str(pattern)!r} (working folder {Path.cwd()}); "
                "quote the pattern and check the path, for example 'traces_data/*.pkl*'."
            )
        for path in sorted(matches):
            found.setdefault(os.path.realpath(path), path)
    names = {str(path) for path in found.values()}
    files: list[Path] = []
    refused: list[TraceError] = []
    for path in sorted(found.values()):
        plain = path.with_suffix("")
        if kind_of(path) is None:
            known = ", ".join(end for ends in SUFFIXES.values() for end in ends)
            detail = f"the name ends in none of {known}; move the file away or narrow the pattern."
            refused.append(TraceError(detail, file=str(path)))
        elif path.suffix == ".gz" and str(plain) in names:
            detail = f"both {plain.name} and {path.name} match; keep one, or narrow the pattern."
            refused.append(TraceError(detail, file=str(path)))
        else:
            files.append(path)
    return files, refused


def kind_of(path: Path) -> str | None:
    """Return a key of ``SUFFIXES`` by the file's name, or None."""
    name = path.name.lower()
    return next((kind for kind, ends in SUFFIXES.items() if name.endswith(ends)), None)


def open_raw(path: Path) -> BinaryIO:
    """Open a file, inflating gzip; raise TraceError if it cannot be read or is empty."""
    try:
        stream = path.open("rb")
        try:
            magic = stream.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)]
        except BaseException:
            stream.close()
            raise
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}.", file=str(path)) from error
    if magic and magic != GZIP_MAGIC:
        return stream
    stream.close()
    if not magic:
        raise TraceError("the file is empty; write it again.", file=str(path))
    return cast(BinaryIO, igzip.open(path, "rb"))  # type: ignore[no-untyped-call]


def _matches(pattern: str) -> list[Path]:
    literal = Path(pattern)
    if literal.is_dir():
        return [path for path in literal.glob("[!.]*") if kind_of(path) and path.is_file()]
    if literal.exists():  # a name may contain brackets
        return [literal]
    return [
        path
        for path in map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207
        if path.is_file() and path.name not in BESIDE_TRACES
    ]
