"""Memory that is freed stays with the process while files are packed.

glibc gives large blocks back to the kernel at once, and the next array is mapped anew, page by
page: without this, page faults take more time than everything else that is done to an uncompressed
float16 file. Where the library is another one, nothing is changed.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any, Final

# <malloc.h>
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_KEEP: Final = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 1 << 26))
#: What glibc's own thresholds grow to (DEFAULT_MMAP_THRESHOLD_MAX on 64 bits, and twice that).
_USUAL: Final = ((_M_MMAP_THRESHOLD, 1 << 25), (_M_TRIM_THRESHOLD, 1 << 26), (_M_TOP_PAD, 1 << 17))


def keep_freed_memory() -> None:
    """Let freed memory stay, for good: of a process that does nothing else."""
    _set(_KEEP)


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let freed memory stay until the block ends, then give it back."""
    _set(_KEEP)
    try:
        yield
    finally:
        _set(_USUAL)
        libc = _glibc()
        if libc is not None:
            libc.malloc_trim(0)


def _set(values: tuple[tuple[int, int], ...]) -> None:
    libc = _glibc()
    if libc is not None:
        for name, value in values:
            libc.mallopt(name, value)


def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "gnu_get_libc_version") else None
    except (OSError, TypeError):
        return None
