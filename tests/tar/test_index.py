"""The tar walk against the standard library and webdataset as writers, and against damage."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import webdataset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trials import trials

from wdsbench import _core

BLOCK = 512
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def listed(path: Path) -> list[tuple[str, int, int]]:
    with path.open("rb") as file:
        names, offsets, sizes = _core.list_tar_members(file.fileno())
    return list(zip(names, offsets.tolist(), sizes.tolist(), strict=True))


def expected(path: Path) -> list[tuple[str, int, int]]:
    with tarfile.open(path) as tar:
        members = tar.getmembers()
    return [(m.name, m.offset_data, m.size) for m in members if m.isreg()]


def tar_of(
    files: dict[str, bytes], tar_format: int = tarfile.USTAR_FORMAT, **header: object
) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in header.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("tar_format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 70_000])
def test_what_tarfile_writes(tmp_path: Path, tar_format: int, size: int) -> None:
    files = {f"k{i}.x.npy": bytes([i]) * size for i in range(5)}
    path = written(tmp_path, tar_of(files, tar_format))
    assert listed(path) == expected(path)
    assert len(listed(path)) == 5


@pytest.mark.parametrize("tar_format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("name", ["a" * 99, "a" * 100, "d/" * 50 + "b", "é" * 20])
def test_names_at_every_limit(tmp_path: Path, tar_format: int, name: str) -> None:
    path = written(tmp_path, tar_of({name: b"x", "after": b"y"}, tar_format))
    assert listed(path) == expected(path)


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["a" * 101, "a" * 300, "d/" * 200 + "b", "long é " * 30])
def test_long_names(tmp_path: Path, tar_format: int, name: str) -> None:
    path = written(tmp_path, tar_of({name: b"x", "after": b"y"}, tar_format))
    assert listed(path) == expected(path)
    assert listed(path)[0][0] == name


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = written(tmp_path, tar_of({"caf\udce9": b"x"}, tarfile.GNU_FORMAT))
    assert listed(path)[0][0] == "caf\udce9"


def test_what_webdataset_writes(tmp_path: Path) -> None:
    path = tmp_path / "w.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for i in range(20):
            writer.write({"__key__": f"k{i:03}", "x.txt": "t" * i, "y.json": {"i": i}})
    assert listed(path) == expected(path)
    assert len(listed(path)) == 40


def test_an_empty_archive(tmp_path: Path) -> None:
    assert listed(written(tmp_path, tar_of({}))) == []
    assert listed(written(tmp_path, bytes(2 * BLOCK))) == []


def test_directories_are_left_out(tmp_path: Path) -> None:
    data = tar_of({"d": b""}, type=tarfile.DIRTYPE)[:BLOCK] + tar_of({"d/a.x": b"1"})
    path = written(tmp_path, data)
    assert listed(path) == [("d/a.x", 2 * BLOCK, 1)]


def test_binary_sizes_of_gnu(tmp_path: Path) -> None:
    data = bytearray(tar_of({"a": b"xyz"}))
    data[124:136] = b"\x80" + (3).to_bytes(11, "big")
    assert listed(written(tmp_path, resum(data))) == [("a", BLOCK, 3)]


def resum(data: bytearray, at: int = 0) -> bytes:
    """Set the checksum of the header at ``at`` to what its bytes give."""
    data[at + 148 : at + 156] = b" " * 8
    total = sum(data[at : at + BLOCK])
    data[at + 148 : at + 156] = f"{total:06o}\0 ".encode()
    return bytes(data)


def changed(at: int, new: bytes, *, sums: bool = True) -> bytes:
    data = bytearray(tar_of({"a.x": b"x" * 600, "b.x": b"y"}))
    data[at : at + len(new)] = new
    return resum(data) if sums else bytes(data)


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    header = bytearray(tar_of({"p": records}, tarfile.USTAR_FORMAT)[: BLOCK * 2])
    header[156:157] = kind
    return resum(header) + tar_of({"a.x": b"x"})


SECOND = 3 * BLOCK  # the header of b.x: one block of header and two of data before it
END = 5 * BLOCK

# (how it is broken, bytes, kind, offset)
BROKEN: list[tuple[str, bytes, str, int]] = [
    ("empty file", b"", "truncated", 0),
    ("not a tar", b"PK\x03\x04" * 600, "magic", 257),
    ("cut in a header", changed(0, b"")[: SECOND + 100], "truncated", SECOND + 100),
    ("cut in data", changed(0, b"")[: 2 * BLOCK], "truncated", 2 * BLOCK),
    ("cut at a header", changed(0, b"")[:SECOND], "truncated", SECOND),
    ("no end", changed(0, b"")[:END], "truncated", END),
    ("half an end", changed(0, b"")[: END + BLOCK], "truncated", END + BLOCK),
    ("flipped name", changed(1, b"?", sums=False), "header", 148),
    ("flipped second header", changed(SECOND, b"?", sums=False), "header", SECOND + 148),
    ("size not a number", changed(124, b"0000000zzzz\0"), "header", 124),
    ("size missing", changed(124, bytes(12)), "header", 124),
    ("negative size", changed(124, b"\xff" * 12), "header", 124),
    ("size past the end", changed(124, b"77777777777\0"), "truncated", 10_240),
    ("huge binary size", changed(124, b"\x80" + b"\xff" * 11), "header", 124),
    ("symbolic link", changed(156, b"2"), "header", 156),
    ("hard link", changed(156, b"1"), "header", 156),
    ("device", changed(156, b"3"), "header", 156),
    ("sparse", changed(156, b"S"), "header", 156),
    ("unknown type", changed(156, b"\x01"), "header", 156),
    ("two archives", tar_of({"a": b""})[: 2 * BLOCK] + tar_of({"b": b""}), "truncated", 2 * BLOCK),
    ("after the end", changed(10_000, b"late", sums=False), "value", 9_728),
    ("odd bytes after the end", changed(0, b"") + b"x", "value", 10_240),
    ("pax without length", pax(b"path=x\n"), "header", BLOCK),
    ("pax too long", pax(b"99 path=x\n"), "header", BLOCK),
    ("pax without line end", pax(b"10 path=xx"), "header", BLOCK),
    ("pax without equals", pax(b"9 pathxx\n"), "header", BLOCK),
    ("pax size not a number", pax(b"11 size=-1\n"), "header", BLOCK),
    ("pax sparse", pax(b"22 GNU.sparse.major=1\n"), "header", BLOCK),
    ("global name", pax(b"10 path=x\n", b"g"), "header", BLOCK),
    ("name of nothing", pax(b"10 path=x\n")[: 2 * BLOCK] + bytes(1024), "header", 2 * BLOCK),
]


@pytest.mark.parametrize(
    ("data", "kind", "offset"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_broken(tmp_path: Path, data: bytes, kind: str, offset: int) -> None:
    with pytest.raises(_core.FormatError) as caught:
        listed(written(tmp_path, data))
    assert (caught.value.kind, caught.value.offset_bytes) == (kind, offset)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    whole = tar_of({f"{i}.x": b"x" * (i * 100) for i in range(8)})
    path = written(tmp_path, whole)
    end = max(offset + size for _, offset, size in listed(path))
    needed = (end + BLOCK - 1) // BLOCK * BLOCK + 2 * BLOCK
    for length in [*range(0, needed, 37), needed - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(_core.FormatError):
            listed(path)


def fuzzed(change: Callable[[bytearray], None]) -> bytes:
    data = bytearray(tar_of({"a.x": b"x" * 600, "l" * 150: b"y"}, tarfile.PAX_FORMAT))
    change(data)
    return bytes(data)


@pytest.mark.trials
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=4))
@example([(2048, 128)])  # a length of a PAX record that is not UTF-8
@settings(max_examples=trials(100, 300), deadline=None)
def test_noise_is_read_or_refused(noise: list[tuple[int, int]]) -> None:
    import tempfile

    def change(data: bytearray) -> None:
        for at, value in noise:
            data[at] = value
        resum(data)

    data = fuzzed(change)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            names, offsets, sizes = _core.list_tar_members(file.fileno())
        except _core.FormatError:
            return
    assert len(names) == len(offsets) == len(sizes)
    assert all(0 <= at <= at + size <= len(data) for at, size in zip(offsets, sizes, strict=True))
