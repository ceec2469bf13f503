"""Memory of a process and its workers that the kernel cannot reclaim: anonymous and shared pages.

The page cache is not counted. Sizes are proportional shares (Pss): a page mapped by n processes
counts 1/n in each, so that a slab shared by a trainer and its workers counts once in their sum.
Source: proc(5), ``/proc/PID/smaps_rollup``.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")

#: (file, lines); the second, for kernels before 5.4, counts shared pages n times.
SOURCES = (
    ("smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")),
    ("status", ("RssAnon:", "RssShmem:")),
)


def footprint_mb(pid: int | None = None) -> float:
    """Return MB (1e6 bytes) of a process (default: this one) and its running descendants.

    Without ``/proc`` (macOS) the result is 0.
    """
    return sum(_own_bytes(each) for each in _family(os.getpid() if pid is None else pid)) / 1e6


def _family(pid: int) -> list[int]:
    """Return ``pid`` and its descendants."""
    found = [pid]
    for process in found:  # the list grows during iteration
        for path in (PROC / str(process) / "task").glob("*/children"):
            try:
                found += [int(word) for word in path.read_text(encoding="ascii").split()]
            except OSError:  # the thread has ended
                continue
    return found


def _own_bytes(pid: int) -> int:
    for name, wanted in SOURCES:
        try:
            lines = (PROC / str(pid) / name).read_text(encoding="ascii").splitlines()
        except OSError:  # an older kernel, or the process has ended
            continue
        kilobytes = [int(line.split()[1]) for line in lines if line.startswith(wanted)]
        if len(kilobytes) == len(wanted):
            return sum(kilobytes) * 1024
    return 0
