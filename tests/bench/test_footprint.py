"""Anonymous and shared memory, of a process and of what it started."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wdsbench.bench.timing import footprint_mb

SIZE = 64 << 20
SIZE_MB = SIZE / 1e6

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_written_memory_counts_and_page_cache_does_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    before = footprint_mb()
    with path.open("rb") as file, mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == 0
        assert footprint_mb() - before < SIZE_MB / 2
    written = b"x" * SIZE
    assert footprint_mb() - before == pytest.approx(SIZE_MB, rel=0.2)
    del written


def test_a_child_counts() -> None:
    before = footprint_mb()
    code = f"data = b'x' * {SIZE}; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert footprint_mb() - before == pytest.approx(SIZE_MB, rel=0.4)
        assert footprint_mb(child.pid) == pytest.approx(SIZE_MB, rel=0.4)
        child.communicate(b"\n")


def test_shared_memory_counts_once() -> None:
    """A slab that two processes map is one slab."""
    before = footprint_mb()
    descriptor = os.memfd_create("slab")
    try:
        os.truncate(descriptor, SIZE)
        code = (
            f"import mmap; slab = mmap.mmap({descriptor}, {SIZE});"
            f" slab.write(b'x' * {SIZE}); print(flush=True); input()"
        )
        with (
            mmap.mmap(descriptor, SIZE) as mapped,
            subprocess.Popen(
                [sys.executable, "-S", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
            ) as child,
        ):
            assert child.stdout is not None
            child.stdout.readline()
            assert mapped[:: mmap.PAGESIZE].count(b"x") == SIZE // mmap.PAGESIZE
            assert footprint_mb() - before == pytest.approx(SIZE_MB, rel=0.4)
            child.communicate(b"\n")
    finally:
        os.close(descriptor)
