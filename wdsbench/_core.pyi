"""Stub of the C++ extension: bytes of shards to arrays. Every call releases the GIL while it works.

Arrays are passed as they are and never converted: a wrong dtype is a ``TypeError``, a wrong shape
a ``ValueError``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

class FormatError(ValueError):
    """Bytes break their format.

    Attributes:
        kind: truncated, magic, header, dtype, shape, size, value or io.
        offset_bytes: Place in the file (or buffer) that was read.
        detail: What was seen and what is allowed.
        sample: Row of ``jobs`` that failed, or None.
        member: Member of that sample (``"hidden"``, ``"edges_ptr"``, ...), or "".
    """

    kind: str
    offset_bytes: int
    detail: str
    sample: int | None
    member: str

def half_kernels() -> list[tuple[str, bool]]:
    """Return (name, this processor has it) of every kernel compiled, best first."""

def half_kernel() -> str:
    """Return the kernel in use; WDSBENCH_HALF_KERNEL forces one."""

def widen_half(source: Buffer, target: Buffer, *, kernel: str | None = None) -> None:
    """Write the float32 of every float16 in ``source``; any alignment. Signalling NaNs come out
    quiet.
    """

def narrow_float(source: Buffer, target: Buffer) -> None:
    """Write the nearest float16 (ties to even) of every float32 in ``source``; any alignment."""

def parse_npy_header(member: Buffer, member_size: int) -> tuple[str, tuple[int, ...], int]:
    """Return (descr, shape, payload offset) of the npy header at the start of ``member``."""

def list_tar_members(fd: int) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Return (names, data offsets, sizes) of the regular files of a tar, in order.

    USTAR, PAX and GNU long names are read. Every header's checksum, every size and the end of the
    archive are proved; names that are not UTF-8 come out as ``os.fsdecode`` gives them.

    Raises:
        FormatError: A damaged or cut archive, or an entry that is not a regular file or directory.
    """

def decode_rows(
    jobs: NDArray[np.int64],
    layers: NDArray[np.int64],
    *,
    layers_stored: int,
    features: int,
    token_padded: int,
    bf16: bool,
    out: NDArray[np.float32],
    threads: int,
) -> None:
    """Decode members ``[L, T, D]`` into one float32 buffer.

    Args:
        jobs: int64 ``[B, 10]``, a row a sample: fd, offset, size, scale offset, scale size (0:
            none), tokens stored, first token, token count, target element of ``out``, elements of
            ``out`` from one layer to the next.
        layers: int64, which layers, in order of output.
        layers_stored: L of every member.
        features: D of every member.
        token_padded: Rows of each layer; those past the token count are set to zero (0: no
            padding).
        bf16: ``<u2`` members hold bfloat16 bits.
        out: float32, one axis, written in place.
        threads: Decode threads, the caller's among them.

    Raises:
        FormatError: A member is damaged or not of the announced shape; ``out`` is then half
            written.
    """

def mean_edges(
    attention: NDArray[Any], kind: str, value: float
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint16]]:
    """Return (source, target, float16 bits of weight) of the edges j -> i of the mean over heads.

    Args:
        attention: ``[H, T, T]``, float16 or float32, C order; entry (h, i, j) is what token i
            gives to token j.
        kind: ``"top"``: the heaviest max(1, floor(value * i)) predecessors of each token i;
            ``"threshold"``: all with mean weight >= value.
        value: Share or weight, 0..1.

    Raises:
        FormatError: A weight below the diagonal is not finite.
    """

def read_edge_pointers(
    jobs: NDArray[np.int64], *, layers_stored: int, threads: int
) -> NDArray[np.uint32]:
    """Return the edge pointers ``[B, L + 1]`` of all samples; ``jobs`` as in
    :func:`collate_edges`.
    """

def collate_edges(
    jobs: NDArray[np.int64],
    layers: NDArray[np.int64],
    *,
    pointers: NDArray[np.uint32],
    edge_index: NDArray[np.int64],
    edge_attr: NDArray[np.float32],
    threads: int,
) -> None:
    """Write the disjoint union of all samples' and layers' edges.

    Args:
        jobs: int64 ``[B, 10]``, a row a sample: fd, offset and size of index, weight and pointer,
            tokens, first node and first edge of the union.
        layers: int64, which layers, in order of output.
        pointers: What :func:`read_edge_pointers` returned for the same jobs.
        edge_index: int64 ``[2, E]``, written in place: row 0 sources, row 1 targets.
        edge_attr: float32 ``[E]``, written in place.
        threads: Decode threads, the caller's among them.

    Raises:
        FormatError: An index out of range, a weight that is not finite, members that disagree with
            the pointer.
    """
