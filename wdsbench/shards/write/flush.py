"""Flushes files to the disk in a background thread while the next are written.

Without this the disk would be idle until a whole shard is flushed and the writer waits for it.
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
#: Whole files that may be waiting for the disk while the next are written.
_WAITING_FILES: Final = 3


class Flusher:
    """Flushes files in the order given; the thread starts with the first."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._files: deque[Future[None]] = deque()
        self._part: Future[None] | None = None
        self._flushed_bytes: dict[int, int] = {}  # by descriptor

    def flush_part(self, file: BinaryIO, size_bytes: int) -> None:
        """Flush a growing file of ``size_bytes`` every 32 MB, without waiting; raise OSError if an
        earlier part could not be written. The file stays open until `flush_whole` or `close`.
        """
        descriptor = file.fileno()
        if size_bytes - self._flushed_bytes.get(descriptor, 0) < _STEP_BYTES:
            return
        if self._part is not None:
            if not self._part.done():  # the disk is behind; another request would not help
                return
            self._part.result()
        self._flushed_bytes[descriptor] = size_bytes
        flush = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter
        self._part = self._submit(lambda: flush(descriptor))

    def flush_whole(self, file: BinaryIO, path: Path, on_disk: Callable[[], None]) -> None:
        """Flush and close a file, rename it from the temporary name of ``path`` to ``path``, and
        call ``on_disk``, all in the thread; wait if too many files are waiting. Raises OSError if
        this file or an earlier one could not be written.
        """
        self._flushed_bytes.pop(file.fileno(), None)
        part = self._part

        def finish() -> None:
            if part is not None:
                part.result()  # the kernel reports an error once: this flush may succeed after it
            with file:
                os.fsync(file.fileno())
            temp_path(path).replace(path)
            on_disk()

        self._files.append(self._submit(finish))
        self.wait(_WAITING_FILES)

    def wait(self, waiting: int = 0) -> None:
        """Wait until at most ``waiting`` files are left; raise OSError if one was not written."""
        while self._files and (len(self._files) > waiting or self._files[0].done()):
            self._files.popleft().result()

    def close(self) -> None:
        """Wait for everything and end the thread; ignore errors that were not raised yet."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        for future in self._files:
            future.exception()
        self._files.clear()
        self._part = None
        self._flushed_bytes.clear()

    def _submit(self, work: Callable[[], None]) -> Future[None]:
        self._thread = self._thread or ThreadPoolExecutor(1, "wdsbench-flush")
        return self._thread.submit(work)
