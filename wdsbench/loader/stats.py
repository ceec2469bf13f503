"""How the time of an epoch was spent, and one sentence about its bottleneck."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

#: Share of an epoch below which waiting is not reported.
LITTLE = 0.05

#: Share of their time above which decode threads count as always busy.
BUSY = 0.7


@dataclass
class LoaderStats:
    """Counters of the last (or current) epoch; times are wall-clock seconds unless noted."""

    epoch: int = 0
    samples: int = 0
    batches: int = 0
    #: Batches in ordinary memory: the consumer held every slab, or the batch did not fit in one.
    copied_batches: int = 0
    #: Payload bytes of hidden states that were decoded.
    bytes_read: int = 0
    #: Bytes that this process and its workers fetched from a disk, not from the page cache.
    disk_bytes: int = 0
    #: From the first request of a batch to the last batch yielded.
    seconds: float = 0.0
    #: Decode time, summed over threads.
    decode_seconds: float = 0.0
    #: Time that the consumer waited for batches.
    trainer_waited_seconds: float = 0.0
    #: Time that finished batches waited for the consumer.
    loader_waited_seconds: float = 0.0
    #: Time of the copies to a CUDA device, on their own stream.
    copy_seconds: float = 0.0
    #: Decode threads of all processes.
    decoders: int = 1

    @property
    def gbps(self) -> float:
        """Stored bytes decoded per second, in GB (1e9 bytes)."""
        return self.bytes_read / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def verdict(self) -> str:
        """One sentence about the bottleneck of the epoch and its remedies."""
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
    """Return the bytes that this process has fetched from disks; 0 if unknown."""
    if not sys.platform.startswith("linux"):
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * 512
