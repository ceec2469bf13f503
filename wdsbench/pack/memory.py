"""Keeps freed memory in the process while files are packed.

glibc returns large blocks to the kernel at once, and the next array is mapped again, page by page.
For an uncompressed float16 file these page faults take more time than all other work. With another
C library nothing is changed.
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
#: The limits that glibc's thresholds grow to (DEFAULT_MMAP_THRESHOLD_MAX on 64 bits, and twice).
_USUAL: Final = ((_M_MMAP_THRESHOLD, 1 << 25), (_M_TRIM_THRESHOLD, 1 << 26), (_M_TOP_PAD, 1 << 17))


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory until the block ends, then return it to the kernel."""
    libc = _glibc()
    if libc is None:
        yield
        return
    for name, value in _KEEP:
        libc.mallopt(name, value)
    try:
        yield
    finally:
        for name, value in _USUAL:
            libc.mallopt(name, value)
        libc.malloc_trim(0)


def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "gnu_get_libc_version") else None
    except (OSError, TypeError):
        return None
