"""One shard compared with the table: every byte is read once, hashed and checked.

Headers, members and padding of a sample are contiguous, so each sample is one read into a reused
buffer. Our headers depend on name and size alone and are compared byte by byte, so damage is
located even after other damage that ends a walk from header to header.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.shards.check.arrays import LayerStats
from wdsbench.shards.check.contents import check_contents
from wdsbench.shards.check.members import (
    FAST_BYTES,
    MemberPlace,
    check_bytes,
    table_places,
    tar_places,
)
from wdsbench.shards.check.problems import BYTE_KINDS, Problem
from wdsbench.shards.format.tar import BLOCK_BYTES, END_BYTES, hash_file
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample

_CHUNK_BYTES: Final = 1 << 20

#: Kinds of byte problems of data that is not as it was written.
_LOSING: Final = ("cut", "hash", "npy")


@dataclass
class CheckedSample:
    """A sample that was checked.

    ``members`` are the bytes of the readable members by name (without the key), valid until the
    next sample is yielded; ``lost`` is the reason why they cannot be copied, or "".
    """

    row: int
    members: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    lost: str = ""
    stats: LayerStats | None = None


class ShardCheck:
    """The check of one shard, run by ``samples``, after which ``problems`` (of the shard itself),
    ``stats`` (of all states) and ``bytes_read`` are complete.
    """

    def __init__(self, index: DatasetIndex, number: int, *, fast: bool = False) -> None:
        self._index = index
        self._entry = index.file.shardlist[number]
        self._path = index.shard_path(number)
        self._rows = range(*index.first_rows[number : number + 2].tolist())
        self._fast = fast
        self._ours = index.has_hashes  # else another writer's, with an index made from the shards
        self._digest = xxhash.xxh3_64()
        self._hashed_bytes = 0  # of the file's start, without a gap
        self._scratch = np.empty(0, np.uint8)
        self._metadata: list[MemberPlace] = []  # headers with another owner, time or mode
        self._byte_problem = False
        self.shard = Path(self._entry.url).name
        self.problems: list[Problem] = []
        self.stats = LayerStats.zeros(index.num_layers)
        self.bytes_read = 0
        self.damaged_samples = 0  # counted by `run`

    def run(self) -> ShardCheck:
        """Check the whole shard; the problems of samples are the last of ``problems``."""
        found: list[Problem] = []
        for sample in self.samples():
            found += sample.problems
            self.damaged_samples += bool(sample.lost or sample.problems)
        self.problems += found
        self._scratch = self._scratch[:0].copy()  # results are kept until all shards are checked
        return self

    def samples(self) -> Iterator[CheckedSample]:
        """Yield the samples one by one, in the table's order."""
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            reason = f"the shard cannot be opened: {error.strerror}"
            self._add("missing", f"{reason}; restore it, or keep the rest with --repair")
            for row in self._rows:
                yield CheckedSample(row, lost=reason)
            return
        try:
            yield from self._samples()
        finally:
            os.close(self._fd)

    def _samples(self) -> Iterator[CheckedSample]:
        self._size = os.fstat(self._fd).st_size
        if self._size != self._entry.filesize:
            detail = f"{self._size} bytes, the index says {self._entry.filesize}"
            self._add("size", detail, offset_bytes=min(self._size, self._entry.filesize))
        expected, nowhere = table_places(self._index, self._rows)
        wanted: dict[int, set[str]] = defaultdict(set)
        for place in expected + nowhere:
            wanted[place.row].add(place.member)
        for place in nowhere:
            detail = f"the table says that its data begins at byte {place.offset_bytes}"
            self._add("table", detail, member=place.name)
        broken: _core.FormatError | None = None
        places = expected
        try:
            listed = _core.list_tar_members(self._fd)
            if self._ours:  # other writers' tars can hold other files
                places, misplaced = tar_places(expected, *listed)
                for detail, name, offset in misplaced:
                    self._add("member", detail, member=name, offset_bytes=offset)
        except _core.FormatError as error:
            broken = error
        of_row: dict[int, list[MemberPlace]] = defaultdict(list)
        for place in places:
            of_row[place.row].append(place)
        explained: list[Problem] = []
        for row in self._rows:
            sample = self._sample(row, of_row[row], wanted[row], walked=broken is None)
            self._byte_problem |= any(p.kind in BYTE_KINDS for p in sample.problems)
            explained += sample.problems
            yield sample
        self._check_end(places)
        if self._metadata:
            first = self._metadata[0]
            self._add(
                "header",
                f"tar headers of {len(self._metadata)} members are not as they were written (owner,"
                " time or mode); names and sizes are right",
                member=first.name,
                offset_bytes=first.first_bytes,
            )
        if broken is not None and not _explains(explained + self.problems, broken):
            self._add("tar", broken.detail, offset_bytes=broken.offset_bytes)
        self._check_hash()

    def _add(
        self, kind: str, detail: str, *, member: str | None = None, offset_bytes: int | None = None
    ) -> None:
        self._byte_problem |= kind in BYTE_KINDS
        self.problems.append(Problem(kind, detail, self.shard, member, offset_bytes))

    def _sample(
        self, row: int, places: list[MemberPlace], wanted: set[str], *, walked: bool
    ) -> CheckedSample:
        """Return one sample, read and checked; ``wanted`` are its members in the table."""
        sample = CheckedSample(row)
        missing = wanted - {place.member for place in places}
        damaged: set[str] = set()
        regions = self._read(places)
        for place in places:
            region = regions[place.name]
            found = check_bytes(
                place, region, self._size, fast=self._fast, ours=self._ours, walked=walked
            )
            question = self._index.question_id(place.row)
            sample.problems += [
                Problem(kind, detail, self.shard, place.name, offset, question)
                for kind, offset, detail in found.problems
            ]
            if not found.whole:
                damaged.add(place.member)
            if found.other_metadata:
                self._metadata.append(place)
            if not self._fast:
                data = region[BLOCK_BYTES : BLOCK_BYTES + place.size_bytes]
                if data.size == place.size_bytes:
                    sample.members[place.member] = data
        if damaged:
            sample.lost = next(p.detail for p in sample.problems if p.kind in _LOSING)
        elif missing:
            sample.lost = f"{', '.join(sorted(missing))} missing from the shard"
        if not self._fast and places:
            self._check_contents(sample, places, damaged | missing)
        return sample

    def _read(self, places: list[MemberPlace]) -> dict[str, NDArray[np.uint8]]:
        """Return header, data and padding of each member, as much as the file has of them."""
        spans = []
        for place in sorted(places, key=lambda place: place.offset_bytes):
            read = place.offset_bytes + min(place.size_bytes, FAST_BYTES)
            last = read if self._fast else place.end_bytes
            # The table can be wrong: never read past the end of the file.
            spans.append((place, min(place.first_bytes, self._size), min(last, self._size)))
        needed = sum(max(0, end - first) for _, first, end in spans)
        if self._scratch.size < needed:
            self._scratch = np.empty(needed, np.uint8)
        regions: dict[str, NDArray[np.uint8]] = {}
        at = 0
        while spans:
            count = 1
            while count < len(spans) and spans[count][1] == spans[count - 1][2]:
                count += 1
            first, end = spans[0][1], spans[count - 1][2]
            run = self._scratch[at : at + end - first]
            run = run[: self._read_into(run, first)]
            at += end - first
            if first == self._hashed_bytes and not self._fast:
                self._digest.update(run.data)
                self._hashed_bytes += run.size
            for place, start, stop in spans[:count]:
                regions[place.name] = run[start - first : stop - first]
            del spans[:count]
        return regions

    def _read_into(self, target: NDArray[np.uint8], offset_bytes: int) -> int:
        """Fill ``target`` from the file; return the number of bytes read."""
        done = 0
        while done < target.size and offset_bytes >= 0:
            try:
                count = os.preadv(self._fd, [target[done:].data], offset_bytes + done)
            except OSError as error:
                detail = f"cannot be read here: {error.strerror}"
                self._add("tar", detail, offset_bytes=offset_bytes + done)
                break
            if not count:
                break
            done += count
        self.bytes_read += done
        return done

    def _check_contents(
        self, sample: CheckedSample, places: list[MemberPlace], damaged: set[str]
    ) -> None:
        stored = StoredSample(self._index, sample.row)
        errors, stats = check_contents(stored, sample.members, damaged)
        offsets = {place.member: place.offset_bytes for place in places}
        question = self._index.question_id(sample.row)
        for error in errors:
            name = self._index.member_name(sample.row, error.member)
            byte = offsets.get(error.member)
            if byte is not None:
                byte = None if error.offset_bytes is None else byte + error.offset_bytes
            problem = Problem(error.kind, error.detail, self.shard, name, byte, question)
            sample.problems.append(problem)
            sample.lost = sample.lost or error.detail
        sample.stats = stats
        self.stats.add(stats)

    def _check_end(self, places: list[MemberPlace]) -> None:
        """Check that only zeros, and enough of them, follow the last member."""
        end = max((place.end_bytes for place in places), default=0)
        if not self._ours or self._size < end:
            return
        chunk = np.empty(_CHUNK_BYTES, np.uint8)
        for at in range(end, self._size, _CHUNK_BYTES):
            part = chunk[: min(_CHUNK_BYTES, self._size - at)]
            part = part[: self._read_into(part, at)]
            if at == self._hashed_bytes and not self._fast:
                self._digest.update(part.data)
                self._hashed_bytes += part.size
            if part.any():
                byte = int((part != 0).argmax())
                detail = f"the end of the archive holds {int(part[byte])}, expected zeros"
                self._add("end", detail, offset_bytes=at + byte)
                return
        if self._size - end < END_BYTES:
            zeros = f"{self._size - end} bytes of zeros"
            detail = f"{zeros} follow the last member, expected {END_BYTES}"
            self._add("cut", detail, offset_bytes=self._size)

    def _check_hash(self) -> None:
        """Compare the whole shard's hash unless another problem explains a difference."""
        if self._fast or not self._entry.xxh3 or self._byte_problem:
            return
        digest = self._digest.hexdigest()
        if self._hashed_bytes != self._size:  # the table's members do not fill the file
            digest = hash_file(self._path)
        if digest != self._entry.xxh3:
            self._add(
                "hash",
                f"XXH3 of the shard is {digest}, the index says {self._entry.xxh3}; every member is"
                " as the table says, so the index was changed, or bytes between members",
            )


def _explains(problems: list[Problem], broken: _core.FormatError) -> bool:
    """Return whether a problem is at the place where the walk over the tar ended."""
    block = broken.offset_bytes // BLOCK_BYTES
    return any(
        (problem.kind == "cut" and broken.kind == "truncated")
        or (
            problem.kind in ("header", "end")
            and problem.offset_bytes is not None
            and problem.offset_bytes // BLOCK_BYTES == block
        )
        for problem in problems
    )
