"""Stub of the C++ extension: bytes of shards to arrays. Every call releases the GIL while it works.

Arrays are passed as they are and never converted: a wrong dtype is a ``TypeError``, a wrong shape
a ``ValueError``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

#: Columns of the ``jobs`` of :func:`decode_rows`, :func:`collate_edges` and :func:`collate_union`:
#: int64 ``[B, len(columns)]``, a row per sample. An offset and a size give the place of a member in
#: its shard (size 0: the sample has no such member). ``target`` and ``layer_stride`` count elements
#: of ``out``: where the sample starts, and from one of its layers to the next. ``node_base`` and
#: ``edge_base`` are the first node and edge of the sample in the batch. Edges between two tokens
#: before ``prompt_length`` are left out.
ROWS_COLUMNS: tuple[str, ...]
EDGES_COLUMNS: tuple[str, ...]
HEADS_COLUMNS: tuple[str, ...]

class FormatError(ValueError):
    """Bytes break their format.

    Attributes:
        kind: truncated, magic, header, dtype, shape, size, value or io.
        offset_bytes: Place in the file (or buffer) that was read.
        detail: The value found and the values expected.
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

def widen_half(
    source: Buffer, target: Buffer, *, kernel: str | None = None, stream: bool = False
) -> None:
    """Write the float32 of every float16 in ``source``; any alignment. Signalling NaNs become
    quiet. ``stream``: with stores that bypass the cache.
    """

def narrow_float(source: Buffer, target: Buffer) -> None:
    """Write the nearest float16 (ties to even) of every float32 in ``source``; any alignment."""

def parse_npy_header(member: Buffer, member_size: int) -> tuple[str, tuple[int, ...], int]:
    """Return (descr, shape, payload offset) of the npy header at the start of ``member``."""

def list_tar_members(fd: int) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Return (names, data offsets, sizes) of the regular files of a tar, in order.

    USTAR, PAX and GNU long names are read. Every header's checksum, every size and the end of the
    archive are checked; names that are not UTF-8 are returned as by ``os.fsdecode``.

    Raises:
        FormatError: A damaged or cut archive, or an entry that is not a regular file or directory.
    """

class ShardFiles:
    """Shards numbered as in their index: opened when first needed, kept open, the longest unused
    closed beyond ``limit``. Any thread may use them.

    Reading raises :class:`FormatError` if a shard does not have its expected size, or is cut or
    written to while it is read.
    """

    def __init__(
        self, paths: list[bytes], sizes: list[int], *, limit: int, access: str = "map"
    ) -> None:
        """Name the shards; ``access`` is ``"map"``, ``"sparse"`` (a map without reading ahead) or
        ``"pread"``.
        """

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Return bytes ``[offset, offset + size)`` of a shard."""

    @property
    def open_count(self) -> int:
        """Shards open now."""

class ReadAhead:
    """Requests bytes from the system before they are read, on its own thread. Errors are ignored:
    the reader will report them.
    """

    def __init__(self, files: ShardFiles) -> None: ...
    def request(self, shard: int, offset: int, size: int) -> None:
        """Queue bytes ``[offset, offset + size)`` of a shard."""

    def clear(self) -> None:
        """Drop the requests that are still queued."""

class RowsInFlight:
    """A batch that is decoded in the background; cancelled if it is dropped."""

    def wait(self) -> None:
        """Wait until the batch is in its buffer; raises as :func:`decode_rows` does."""

    @property
    def busy_seconds(self) -> float:
        """Busy seconds of its threads, summed."""

    @property
    def done_at(self) -> float:
        """Time of its end on the clock of ``time.perf_counter``; 0 before."""

def start_rows(
    files: ShardFiles,
    jobs: NDArray[np.int64],
    layers: NDArray[np.int64],
    *,
    layers_stored: int,
    features: int,
    token_padded: int,
    out: NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.uint8],
    threads: int,
    images: bool = False,
) -> RowsInFlight:
    """Start :func:`decode_rows` on ``threads`` threads and return at once.

    One of the threads is the caller's while it waits; with 0, waiting does all the work. ``out``
    must not be used until :meth:`RowsInFlight.wait` has returned.

    Raises:
        FormatError: A shard cannot be opened.
    """

def decode_rows(
    files: ShardFiles,
    jobs: NDArray[np.int64],
    layers: NDArray[np.int64],
    *,
    layers_stored: int,
    features: int,
    token_padded: int,
    out: NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.uint8],
    threads: int,
    images: bool = False,
) -> None:
    """Decode members ``[L, T, D]`` into one buffer.

    Args:
        jobs: int64 ``[B, len(ROWS_COLUMNS)]``.
        layers: int64: the layers, in order of output.
        layers_stored: L of every member.
        features: D of every member.
        token_padded: Rows of each layer; those past the token count are set to zero (0: no
            padding).
        out: One axis, written in place: float32; or uint16, which takes the bits of float16 as
            they are stored, scales not applied (of images uint16 and float16; uint8 takes uint8).
        threads: Decode threads, the caller's among them.
        images: The scale of a sample is float32 ``[L, 2]``, its ranges (low, high); values become
            (x - low) / (high - low), or 0 if a range is empty.

    Raises:
        FormatError: A member is damaged or has another shape, or its shard was cut or written to
            while it was read; ``out`` is then partly written.
    """

def read_scales(
    files: ShardFiles,
    jobs: NDArray[np.int64],
    layers: NDArray[np.int64],
    *,
    layers_stored: int,
    images: bool = False,
) -> NDArray[np.float32]:
    """Return the factors ``[B, layers]`` of the requested layers, 1 where a sample has none; of
    images their ranges ``[B, layers, 2]``.
    """

def mean_edges(
    attentions: list[NDArray[Any]], kind: str, value: float, *, threads: int = 1
) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint32]]:
    """Return (index ``[2, E]``, float16 bits of weight ``[E]``, pointer ``[L + 1]``) of the edges
    j -> i of the mean over heads, layer after layer.

    Args:
        attentions: L maps ``[H, T, T]``, float16 or float32, C order; entry (h, i, j) is what token
            i gives to token j.
        kind: ``"top"``: the heaviest max(1, floor(value * i)) predecessors of each token i;
            ``"threshold"``: all with mean weight >= value.
        value: Share or weight, 0..1.
        threads: Layers at a time.

    Raises:
        FormatError: A weight below the diagonal is not finite; ``sample`` is the layer.
    """

def head_edges(
    attentions: list[NDArray[Any]], threshold: float, *, threads: int = 1
) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint32]]:
    """Return (index, weight, pointer ``[L * H + 1]``) of the edges of every head whose weight is at
    least ``threshold``; otherwise as :func:`mean_edges`.
    """

def sketch(
    attentions: list[NDArray[Any]], *, prompt_length: int | None, threads: int = 1
) -> NDArray[np.float32]:
    """Return ``[L, H, T, 4]``: self-attention, Laplacian diagonal, lookback ratio and entropy of
    every token (csrc/graph/sketch.hpp has the formulas); lookback is NaN outside the answer and
    where ``prompt_length`` is None.
    """

#: Largest weight of an edge: softmax in low precision ends a little above 1.
WEIGHT_MAX: float

def check_edge_lists(
    index: NDArray[Any],
    weight: NDArray[Any],
    pointer: NDArray[Any],
    *,
    tokens: int,
    layers: int,
    heads: int = 0,
    first_layer: int = 0,
) -> None:
    """Check edges against the rules that the decoder applies to stored ones
    (csrc/graph/edge_rules.hpp lists them). The arrays must be C-contiguous.

    Args:
        index: ``[2, E]``: sources, targets.
        weight: ``[E]``.
        pointer: ``[lists + 1]``.
        tokens: T of the sample.
        layers: L; a list is a layer, or a head of a layer.
        heads: Lists of each layer, named as heads in errors; 0: one list a layer.
        first_layer: Number of the first layer, for errors.

    Raises:
        FormatError: The first fault: ``member`` is ``"edges_index"``, ``"heads_ptr"``, ...,
            ``offset_bytes`` counts from its first element, ``sample`` is the list or None, and
            ``kind`` is dtype, shape or value.
    """

def read_edge_pointers(
    files: ShardFiles, jobs: NDArray[np.int64], *, layers_stored: int, threads: int
) -> NDArray[np.uint32]:
    """Return the edge pointers ``[B, L + 1]`` of all samples; ``jobs`` as in
    :func:`collate_edges`.
    """

def collate_edges(
    files: ShardFiles,
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
        jobs: int64 ``[B, len(EDGES_COLUMNS)]``.
        layers: int64: the layers, in order of output.
        pointers: Result of :func:`read_edge_pointers` for the same jobs.
        edge_index: int64 ``[2, E]``, written in place: row 0 sources, row 1 targets.
        edge_attr: float32 ``[E]``, written in place.
        threads: Decode threads, the caller's among them.

    Raises:
        FormatError: An index out of range, a weight that is not finite, members that disagree with
            the pointer.
    """

def count_union_edges(
    files: ShardFiles,
    jobs: NDArray[np.int64],
    layers: NDArray[np.int64],
    *,
    layers_stored: int,
    heads: int,
    threads: int,
) -> NDArray[np.int64]:
    """Return the number of edges of each sample in :func:`collate_union`, ``[B]``."""

def collate_union(
    files: ShardFiles,
    jobs: NDArray[np.int64],
    layers: NDArray[np.int64],
    *,
    layers_stored: int,
    heads: int,
    edge_index: NDArray[np.int64],
    edge_attr: NDArray[np.float32],
    threads: int,
) -> None:
    """Write one graph per sample, with an edge wherever a head of a requested layer attends.

    Args:
        jobs: int64 ``[B, len(HEADS_COLUMNS)]``.
        layers: int64: the layers, in order of the channels.
        layers_stored: L of every member.
        heads: H of every member.
        edge_index: int64 ``[2, E]``, written in place, ordered by sample, target, source.
        edge_attr: float32 ``[E, layers * heads]``, written in place; 0 where a head does not
            attend.
        threads: Decode threads, the caller's among them.

    Raises:
        FormatError: An index out of range, a weight that is not finite, members that disagree with
            the pointer.
    """
