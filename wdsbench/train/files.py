"""Small files of a run, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from wdsbench.files import atomic_file


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(content)


def remove_if_empty(folder: Path) -> None:
    """Remove ``folder`` if it is there and empty."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON with sorted keys; NaN and infinities are refused (not JSON)."""
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    write_whole(path, (text + "\n").encode())
