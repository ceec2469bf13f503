"""Flush files to the disk in a background thread while the next bytes are made.

Written bytes are in the page cache until the kernel writes them back or a file is flushed.
Flushing only complete shards would leave the disk idle first and block the writer at the end, so a
growing file is flushed every 32 MB, and a complete one at once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final

from wdsbench.files import temp_path

_STEP_BYTES: Final = 32_000_000
#: Complete files that can wait for the disk while the next are written.
_WAITING_FILES: Final = 3


class Flusher:
    """Flushes files in the order given; its thread starts with the first."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._files: deque[Future[None]] = deque()
        self._part: Future[None] | None = None
        self._asked: dict[int, int] = {}  # descriptor -> bytes when it was last flushed

    def part(self, file: BinaryIO, size_bytes: int) -> None:
        """Flush a growing file every 32 MB; never waits.

        Args:
            file: The file; stays open until `whole` or `close`.
            size_bytes: Its size so far.

        Raises:
            OSError: An earlier part could not be written.
        """
        descriptor = file.fileno()
        if size_bytes - self._asked.get(descriptor, 0) < _STEP_BYTES:
            return
        if self._part is not None:
            if not self._part.done():  # the disk is busy; another request would not help
                return
            self._part.result()
        self._asked[descriptor] = size_bytes
        flush = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter
        self._part = self._submit(lambda: flush(descriptor))

    def whole(self, file: BinaryIO, path: Path, then: Callable[[], None]) -> None:
        """Flush and close a file and rename it to ``path``; waits if too many are in progress.

        Args:
            file: The file, open under the temporary name of ``path``.
            path: Its final name.
            then: Called by the thread after the rename.

        Raises:
            OSError: This file or an earlier one could not be written.
        """
        self._asked.pop(file.fileno(), None)

        part = self._part

        def finish() -> None:
            if part is not None:
                part.result()  # an error is reported once: the next flush could succeed
            with file:
                os.fsync(file.fileno())
            temp_path(path).replace(path)
            then()

        self._files.append(self._submit(finish))
        self._wait(_WAITING_FILES)

    def wait(self) -> None:
        """Wait for all complete files.

        Raises:
            OSError: One of them could not be written.
        """
        self._wait(0)

    def close(self) -> None:
        """Wait for everything and end the thread; errors that were not raised yet are ignored."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        for future in self._files:
            future.exception()
        self._files.clear()
        self._part = None
        self._asked.clear()

    def _submit(self, work: Callable[[], None]) -> Future[None]:
        self._thread = self._thread or ThreadPoolExecutor(1, "wdsbench-flush")
        return self._thread.submit(work)

    def _wait(self, waiting: int) -> None:
        while self._files and (len(self._files) > waiting or self._files[0].done()):
            self._files.popleft().result()
