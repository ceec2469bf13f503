"""Where an epoch's time went, and one sentence that says what the bottleneck was."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

#: Waiting for less than this share of an epoch is not worth a word.
LITTLE = 0.05

#: Above this share of their time, decode threads count as busy all the time.
BUSY = 0.7


@dataclass
class LoaderStats:
    """What the last (or current) epoch did; times are wall-clock seconds unless said otherwise.

    Attributes:
        epoch: Which one.
        samples: Samples handed out.
        batches: Batches handed out.
        copied_batches: Of these, batches that came in ordinary memory, because the consumer held
            every slab or the batch was larger than one.
        bytes_read: Payload bytes of hidden states that were decoded.
        disk_bytes: Bytes that this process and its workers had to fetch from a disk; the rest was
            in the page cache.
        seconds: From the first batch asked for to the last one handed out.
        decode_seconds: Summed over decode threads.
        trainer_waited_seconds: The consumer waited for a batch.
        loader_waited_seconds: A finished batch waited for the consumer.
        copy_seconds: The copies to a CUDA device were under way, on their own stream.
        decoders: Decode threads of all processes.
    """

    epoch: int = 0
    samples: int = 0
    batches: int = 0
    copied_batches: int = 0
    bytes_read: int = 0
    disk_bytes: int = 0
    seconds: float = 0.0
    decode_seconds: float = 0.0
    trainer_waited_seconds: float = 0.0
    loader_waited_seconds: float = 0.0
    copy_seconds: float = 0.0
    decoders: int = 1

    @property
    def gbps(self) -> float:
        """Stored bytes decoded a second, in GB (1e9 bytes)."""
        return self.bytes_read / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def verdict(self) -> str:
        """One sentence: what the epoch's time was spent on, and what would help."""
        if not self.seconds:
            return "No batch was read."
        waited = self.trainer_waited_seconds / self.seconds
        busy = self.decode_seconds / (self.seconds * self.decoders)
        if waited < LITTLE:
            return (
                f"Training is the bottleneck: it waited for data {waited:.0%} of"
                f" {self.seconds:.1f} s."
            )
        head = f"Training waited for data {waited:.0%} of {self.seconds:.1f} s; "
        if self.disk_bytes > self.bytes_read / 2:
            rate = self.disk_bytes / self.seconds / 1e9
            return (
                f"{head}the disk is the bottleneck ({self.disk_bytes / 1e9:.1f} GB from it at"
                f" {rate:.2f} GB/s): a faster disk, fewer layers or tokens, or more memory for the"
                " page cache would help."
            )
        if busy > BUSY:
            return (
                f"{head}decoding is the bottleneck (its threads were busy {busy:.0%} of it at"
                f" {self.gbps:.1f} GB/s): more threads, fewer layers or tokens would help."
            )
        return (
            f"{head}decode threads were busy only {busy:.0%} of it, so Python is the bottleneck:"
            " larger batches or num_workers would help."
        )


def disk_bytes() -> int:
    """Return the bytes that this process has fetched from disks so far; 0 where unknown."""
    if not sys.platform.startswith("linux"):
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * 512
